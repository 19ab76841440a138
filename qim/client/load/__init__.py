"""Open-loop load: devices in one event loop that send at a given rate, whatever comes back, and judge what arrives."""
