"""The pure machines and the ports they speak; nothing here touches the world."""
