// Visits every reachable state, nearest states first, so that the first violation has a shortest trace.
#pragma once
#include <cstdio>
#include <string>
#include <vector>

#include "canonical.h"
#include "packed.h"
#include "seen.h"

struct Found {
  std::string violation;  // empty: none
  std::vector<std::string> trace;
  size_t states = 0, deepest = 0;
  bool complete = true;
};

class Explorer {
 public:
  // *alike*: all workers behave the same. *traced*: keep all states for the trace of a violation.
  Explorer(const Model& model, const Budget& budget, size_t most, bool alike, bool traced)
      : model_(model), budget_(budget), most_(most), alike_(alike), traced_(traced) {}

  // *to_ends*: also check that every state can lead to an end.
  Found run(bool to_ends) {
    State initial = {};
    initial.left = budget_;
    add(canonical(initial, alike_), 0);
    size_t end_of_layer = 1;
    for (uint32_t i = 0; i < seen_.count && found_.violation.empty(); ++i) {
      if (i == end_of_layer) {
        ++found_.deepest, end_of_layer = seen_.count;
        if (!traced_) forget_before(i);
      }
      if (seen_.count > most_) {
        found_.complete = false;
        break;
      }
      visit(i, to_ends);
    }
    if (to_ends && found_.complete && found_.violation.empty()) look_for_ends();
    found_.states = seen_.count;
    if (traced_ && !found_.violation.empty()) tell();
    return std::move(found_);
  }

 private:
  struct Visit : Sink {
    Explorer& explorer;
    const uint32_t from;
    const bool keeps_edges;
    int steps = 0;
    Visit(Explorer& e, uint32_t i, bool edges) : explorer(e), from(i), keeps_edges(edges) {}
    void step(State& next, const char*, int, int, int) override {
      ++steps;
      const uint32_t to = explorer.add(canonical(next, explorer.alike_), from);
      if (keeps_edges) explorer.edges_.push_back({from, to});
    }
    void violation(const char* what) override { explorer.violated(what, from); }
  };

  // Finds the name of the step to a state, or of the step that breaks a promise. For the latter, violation() is called
  // before step().
  struct Name : Sink {
    const State* const to;  // null: the step that breaks a promise
    const bool alike;
    bool found = false;
    std::string text;
    Name(const State* t, bool same) : to(t), alike(same) {}
    void step(State& next, const char* what, int a, int b, int c) override {
      if (!text.empty() || !(to ? canonical(next, alike) == *to : found)) return;
      char line[200];
      snprintf(line, sizeof line, what, a, b, c);
      text = line;
    }
    void violation(const char*) override { found = true; }
  };

  struct Edge {
    uint32_t from, to;
  };

  uint32_t add(const State& state, uint32_t parent) {
    uint64_t a, b;
    hash(state, a, b);
    bool is_new;
    const uint32_t number = seen_.number(a, uint32_t(b), is_new);
    if (is_new) {
      kept_.add(state);
      if (traced_) parents_.push_back(parent);
    }
    return number;
  }

  void visit(uint32_t i, bool to_ends) {
    const State state = kept_.get(i - first_kept_);
    Visit sink(*this, i, to_ends);
    const Moment now{state, model_, budget_, sink};
    all_steps(now);
    if (to_ends && has_ended(state)) ends_.push_back(i);
    if (sink.steps) return;
    if (const char* wrong = wrong_end(now)) violated(wrong, i);
  }

  void violated(const char* what, uint32_t at) {
    if (found_.violation.empty()) found_.violation = what, violated_at_ = at;
  }

  void forget_before(uint32_t i) {
    kept_.drop_first(i - first_kept_);
    first_kept_ = i;
  }

  // Search backwards from all ends: a state that is not found can never end.
  void look_for_ends() {
    std::vector<uint32_t> begin(seen_.count + 1), before(edges_.size());
    for (const Edge& each : edges_) ++begin[each.to];
    for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    for (const Edge& each : edges_) before[--begin[each.to]] = each.from;
    std::vector<bool> can_end(seen_.count);
    for (uint32_t each : ends_) can_end[each] = true;
    for (size_t i = 0; i < ends_.size(); ++i)
      for (uint32_t j = begin[ends_[i]]; j < begin[ends_[i] + 1]; ++j)
        if (!can_end[before[j]]) can_end[before[j]] = true, ends_.push_back(before[j]);
    for (uint32_t i = 0; i < seen_.count; ++i)
      if (!can_end[i]) return violated("from here, the crawl can never end", i);
  }

  // Find the step between two canonical states by trying all steps.
  void tell() {
    std::vector<uint32_t> path;
    for (uint32_t i = violated_at_; i; i = parents_[i]) path.push_back(i);
    for (uint32_t from = 0; !path.empty(); from = path.back(), path.pop_back()) {
      const State to = kept_.get(path.back());
      tell_step(from, &to);
    }
    tell_step(violated_at_, nullptr);
  }

  void tell_step(uint32_t from, const State* to) {
    const State state = kept_.get(from);
    Name name(to, alike_);
    all_steps({state, model_, budget_, name});
    if (!name.text.empty()) found_.trace.push_back(name.text);
  }

  const Model& model_;
  const Budget budget_;
  const size_t most_;
  const bool alike_, traced_;
  Found found_;
  Seen seen_;
  PackedStates kept_;  // if traced, all states; otherwise those of this layer (states at one distance) and of the next
  uint32_t first_kept_ = 0, violated_at_ = 0;
  std::vector<uint32_t> parents_, ends_;
  std::vector<Edge> edges_;
};
