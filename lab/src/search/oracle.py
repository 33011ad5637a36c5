"""Searches by PyPI's MLRsearch, trial by trial over standard input and output.

In:  "search MIN MAX" and a line "goal LOSS EXCEED INITIAL FINAL SUM WIDTH" each, then "go"
Out: "trial LOAD DURATION"; in: its "INTENDED SENT LOST", of what was sent in time
Out: "found" and the conditional throughput of each goal, 0 for none
"""

import sys

from MLRsearch import AbstractMeasurer, Config, MeasurementResult, MultipleLossRatioSearch, SearchGoal


class Measurer(AbstractMeasurer):
    def measure(self, intended_duration, intended_load):
        print("trial", repr(intended_load), repr(intended_duration), flush=True)
        intended, sent, lost = map(int, sys.stdin.readline().split())
        return MeasurementResult(
            intended_duration=intended_duration,
            intended_load=intended_load,
            intended_count=intended,
            offered_count=sent,
            loss_count=lost,
        )


def search(limits, goals):
    config = Config()
    config.min_load, config.max_load = 1.0, 1e12
    config.min_load, config.max_load = limits
    config.warmup_duration = None
    config.goals = [
        SearchGoal(
            loss_ratio=loss,
            exceed_ratio=exceed,
            initial_trial_duration=initial,
            final_trial_duration=final,
            duration_sum=whole,
            relative_width=width,
            fail_fast=False,
        )
        for loss, exceed, initial, final, whole, width in goals
    ]
    found = MultipleLossRatioSearch(config).search(Measurer(), debug=lambda line: None)
    throughputs = [found[goal].conditional_throughput for goal in config.goals]
    print("found", *[repr(float(one)) if one else "0" for one in throughputs], flush=True)


goals = []
for line in sys.stdin:
    word, *numbers = line.split()
    if word == "search":
        limits, goals = [float(number) for number in numbers], []
    elif word == "goal":
        goals.append([float(number) for number in numbers])
    else:
        search(limits, goals)
