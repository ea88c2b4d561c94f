#pragma once

#include <cstdint>
#include <memory>

#include "worker/models/model.h"
#include "worker/models/resnet.h"

namespace cohort {

// pspnet (ResNet-50), pspnet18 (ResNet-18): a dilated trunk that ends at 1/8
// of the input's size; its map pooled to 1x1, 2x2, 3x3 and 6x6, each through
// a 1x1 convolution to a quarter of the channels, batch norm and ReLU, resized
// back and set beside it; a 3x3 convolution to a quarter with batch norm and
// ReLU, dropout of whole maps (0.1), 1x1 convolution, resized to the input's
// size. In training an auxiliary head of the same form on layer3, weight 0.4.
//
// The batch norm behind the 1x1 pooling has one element a channel and image.
// Under global normalisation that is a batch of as many elements as the
// cohort has images. Under local normalisation with one image a worker it has
// one, whose variance is 0: it comes out as the layer's shift, and the layer
// learns nothing else. It does not stop the run.
// Names: backbone.* (torchvision's of a ResNet without fc), pyramid.0 to .3,
// head, classifier, auxiliary_head, auxiliary_classifier.
// Without initial values.
// Source: Zhao et al., "Pyramid Scene Parsing Network", 2017, figure 3 and
//   section 3.3; resizing here takes pixels as areas, and the stem is
//   torchvision's single 7x7 convolution, so that its checkpoints fit.
std::shared_ptr<Model> MakePspNet(ResNetSize backbone, int64_t channels,
                                  int64_t classes);

}  // namespace cohort
