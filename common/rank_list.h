#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "common/ids.h"

namespace cohort {

// Ranks that do not change once the list is made. Copies share them: every
// assignment of a step names all its members, so a thousand assignments of a
// thousand ranks would otherwise copy a million ranks.
class RankList {
 public:
  // NOLINTBEGIN(readability-identifier-naming): the names of containers.
  using value_type = Rank;
  using const_iterator = const Rank*;
  // NOLINTEND(readability-identifier-naming)

  RankList() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a list of ranks is one.
  RankList(std::vector<Rank> ranks)
      : ranks_(ranks.empty() ? nullptr
                             : std::make_shared<const std::vector<Rank>>(
                                   std::move(ranks))) {}
  RankList(std::initializer_list<Rank> ranks)
      : RankList(std::vector<Rank>(ranks)) {}

  size_t size() const { return ranks_ == nullptr ? 0 : ranks_->size(); }
  bool empty() const { return ranks_ == nullptr; }
  const_iterator begin() const {
    return ranks_ == nullptr ? nullptr : ranks_->data();
  }
  const_iterator end() const { return begin() + size(); }
  Rank front() const { return ranks_->front(); }
  // The other ranks, in the same order.
  RankList Without(Rank rank) const {
    std::vector<Rank> others(begin(), end());
    std::erase(others, rank);
    return others;
  }

  friend bool operator==(const RankList& a, const RankList& b) {
    return a.ranks_ == b.ranks_ ||
           (!a.empty() && !b.empty() && *a.ranks_ == *b.ranks_);
  }

 private:
  // Null if there is none.
  std::shared_ptr<const std::vector<Rank>> ranks_;
};

}  // namespace cohort
