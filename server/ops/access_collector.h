#pragma once

#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/access/access_control.h"
#include "server/ops/figures_source.h"

namespace cohort {

// cohort_denied_calls_total, by reason: calls and pages that were denied, and
// messages that name another rank than their client's.
// Thread safety: safe.
class AccessCollector final : public prometheus::Collectable {
 public:
  // Both must outlive the object.
  AccessCollector(const AccessControl& access, const FiguresSource& figures)
      : access_(access), figures_(figures) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const AccessControl& access_;
  const FiguresSource& figures_;
};

}  // namespace cohort
