"""Addition and subtraction of numbers up to 99; a difference may be negative. It knows nothing of conversations.

A sum is held out for both orders of its terms, a difference for its own order.
"""

from .chance import chance, held_out, vary
from .exchange import said

_SUM = [
    "What is {a} + {b}?", "{a} + {b} = ?", "{a} + {b}", "{a}+{b}", "{a}+{b}=?", "What is {a} plus {b}?", "What's {a} + {b}?",
    "[Calculate|Compute] {a} + {b}.", "Add {a} and {b}.", "[Please add|Can you add] {a} and {b}[?|.]",
    "What is the sum of {a} and {b}?", "How much is {a} plus {b}?", "How much is {a} + {b}?",
    "{a} plus {b}", "Tell me {a} + {b}.", "What do you get if you add {a} and {b}?", "Solve {a} + {b}.",
]
_DIFFERENCE = [
    "What is {a} - {b}?", "{a} - {b} = ?", "{a} - {b}", "{a}-{b}", "{a}-{b}=?", "What is {a} minus {b}?", "What's {a} - {b}?",
    "[Calculate|Compute] {a} - {b}.", "Subtract {b} from {a}.", "[Please subtract|Can you subtract] {b} from {a}[?|.]",
    "How much is {a} minus {b}?", "How much is {a} - {b}?", "{a} minus {b}", "Tell me {a} - {b}.",
    "What is {a} take away {b}?", "What do you get if you subtract {b} from {a}?", "Solve {a} - {b}.",
]


def make(rng, want_held_out=False):
    """One question; in the evaluation both numbers have two digits."""
    while True:
        low = 10 if want_held_out or chance(rng, 0.85) else 0
        a, b = rng.randint(low, 99), rng.randint(low, 99)
        sign = rng.choice("+-")
        key = ("sum", min(a, b), max(a, b)) if sign == "+" else ("difference", a, b)
        if held_out(*key) == want_held_out:
            break
    question = vary(rng, rng.choice(_SUM if sign == "+" else _DIFFERENCE)).format(a=a, b=b)
    result = a + b if sign == "+" else a - b
    thought = sum_steps(a, b) if sign == "+" else difference_steps(a, b)
    return said("arithmetic", question, thought, f"{a} {sign} {b} = {result}", key=key)


def sum_steps(a, b):
    """Adds digit by digit, ones first."""
    ones = a % 10 + b % 10
    carry = ones // 10
    steps = f"{a} + {b}. Ones: {a % 10} + {b % 10} = {ones}"
    steps += f", write {ones % 10}, carry 1." if carry else "."
    tens = a // 10 + b // 10 + carry
    steps += f" Tens: {a // 10} + {b // 10}" + (" + 1" if carry else "") + f" = {tens}."
    return steps + f" Result: {a + b}."


def difference_steps(a, b):
    """Subtracts digit by digit, ones first; turns the terms round when the result is negative."""
    if a < b:
        return f"{a} is less than {b}, so the result is negative. " + difference_steps(b, a) + f" With the sign: {a - b}."
    borrow = a % 10 < b % 10
    ones = a % 10 + (10 if borrow else 0)
    steps = f"{a} - {b}. Ones: "
    steps += f"{a % 10} is less than {b % 10}, borrow 1: " if borrow else ""
    steps += f"{ones} - {b % 10} = {ones - b % 10}."
    tens = a // 10 - b // 10 - borrow
    steps += f" Tens: {a // 10} - {b // 10}" + (" - 1" if borrow else "") + f" = {tens}."
    return steps + f" Result: {a - b}."
