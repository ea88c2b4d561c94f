#pragma once

#include <cstdint>
#include <memory>

#include "worker/models/model.h"
#include "worker/models/resnet.h"

namespace cohort {

// pspnet (ResNet-50), pspnet18 (ResNet-18): a dilated trunk that ends at 1/8 of
// the input's size. Its map is pooled to 1x1, 2x2, 3x3 and 6x6; each level
// passes through a 1x1 convolution to a quarter of the channels, batch norm and
// ReLU, is resized back and concatenated with the map. Then follow a 3x3
// convolution to a quarter with batch norm and ReLU, dropout of whole maps
// (0.1), and a 1x1 convolution; the logits are resized to the input's size. In
// training there is an auxiliary head of the same form on layer3, with weight
// 0.4.
//
// The batch norm behind the 1x1 pooling has one element a channel and image.
// Under global normalisation its batch has as many elements as the cohort has
// images. Under local normalisation with one image a worker it has one element,
// whose variance is 0: the output is the layer's shift, and the layer learns
// nothing else. This does not stop the run.
// Names: backbone.* (torchvision's of a ResNet without fc), pyramid.0 to .3,
//   head, classifier, auxiliary_head, auxiliary_classifier.
// Initial values are not set.
// Source: Zhao et al., "Pyramid Scene Parsing Network", 2017, figure 3 and
//   section 3.3; resizing here treats pixels as areas, and the stem is
//   torchvision's single 7x7 convolution, so that torchvision's checkpoints
//   fit.
std::shared_ptr<Model> MakePspNet(ResNetSize backbone, int64_t channels,
                                  int64_t classes);

}  // namespace cohort
