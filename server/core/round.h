#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/assignment.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/rank_list.h"
#include "server/core/data_cursor.h"
#include "server/core/observation.h"
#include "server/core/push.h"
#include "server/core/rendezvous.h"
#include "server/core/transaction.h"

// Work under way towards the next commit.
namespace cohort {

// The pushes of one (step, attempt).
struct Round {
  Version step;
  Attempt attempt;
  // Ascending; until they are fixed, whoever may become one.
  RankList members;
  bool fixed = true;
  // Not fixed: who has done what makes a member, in order.
  std::vector<Rank> claims;
  // No members, because the step was full without them.
  std::set<Rank> dropped;
  StepCut cut;
  // What each is to compute; of a dropped one too.
  std::map<Rank, IndexRange> ranges;
  // Of the members.
  std::map<Rank, Push> pushes;
  // How many of them are opened, and closed.
  size_t opened = 0;
  size_t closed_count = 0;
  // By partition: how many of them have it.
  std::vector<size_t> arrived;
  // All are closed, and made the same batch-norm calls.
  bool calls_agree = false;
  // Members that have been given the step.
  std::set<Rank> issued;
  RendezvousTable rendezvous;
  // Set once all members have opened.
  std::optional<Transaction> transaction;
  // "rank 3: conv1.weight", of moments or gradients.
  std::optional<std::string> nonfinite;
  // In order: who closed, and when.
  std::vector<std::pair<Rank, Instant>> closed;
  std::optional<Instant> first_fold;
};

// A complete asynchronous push on its way into the model.
struct Arrival {
  Rank rank;
  Incarnation incarnation;
  PushKey key;
  Push push;
  DataCursor::Piece piece;
  // When it was complete.
  Instant since;
  std::vector<LayerDrift> drift;
};

}  // namespace cohort
