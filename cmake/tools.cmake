# The `verbena` launcher and the preload that shows programs the device's files.
