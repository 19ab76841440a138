"""Hunting a mutant: fresh worlds under its override until one of its right checks fires."""

from collections.abc import Iterable

from qim.sim.generate import generate
from qim.sim.mutants import Kill, Mutant
from qim.sim.run import run
from qim.sim.scene import Kit


def hunt(mutant: Mutant, seeds: Iterable[int]) -> Kill:
    """The first kill by a right check, or none after all seeds."""
    kit = Kit(mutant.scripts)
    count = events = 0
    wrong: dict[str, None] = {}
    for seed in seeds:
        report = run(generate(seed, mutant.profile), kit, mutant.overrides)
        count += 1
        events += report.events
        fired = [check for check, _ in report.identities()]
        right = tuple(check for check in fired if check in mutant.checks)
        if right:
            return Kill(
                mutant=mutant.name, checks=right, seeds=count, events=events, wrong=tuple(wrong)
            )
        wrong.update(dict.fromkeys(fired))
    return Kill(mutant=mutant.name, checks=(), seeds=count, events=events, wrong=tuple(wrong))
