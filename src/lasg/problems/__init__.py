"""What is minimised: regressions, and any torch module.

Public: `regression.Regression` and `module.ModuleProblem`, as lasg.Regression and lasg.ModuleProblem, `models`, and
`image_transform`. Any object with their methods is a problem too. The other modules are not for users.
"""
