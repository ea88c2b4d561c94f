#include "common/ops/build_info.h"

#include <string>

#include "common/build_info.h"

namespace cohort {

MetricFamilies BuildInfoFamilies() {
  const BuildInfo info = GetBuildInfo();
  prometheus::MetricFamily family = GaugeFamily(
      "cohort_build_info",
      "Constant 1, labelled with the version and commit of this program.");
  AddValue(family, 1,
           {{"version", std::string(info.version)},
            {"commit", std::string(info.commit)}});
  return {family};
}

}  // namespace cohort
