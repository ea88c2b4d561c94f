#pragma once

namespace cohort {

// Makes aten::batch_norm, and so every batch-norm module, layer expression and
// TorchScript call of this process, try BatchNormScope first. Without a scope
// the stock operator runs as before. Idempotent.
//
// Thread safety: safe.
void InstallBatchNormKernel();

}  // namespace cohort
