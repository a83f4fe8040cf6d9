"""Which items the units of a clock take, and processes that fetch them ahead."""
