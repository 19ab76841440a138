"""Q-IM: an instant-messaging backend in three durable stages with replayable logs between them."""
