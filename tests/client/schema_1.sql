CREATE TABLE device (one INTEGER PRIMARY KEY CHECK (one = 1), attempt INTEGER NOT NULL, state INTEGER NOT NULL,
  cursor BLOB, covered_through BLOB NOT NULL, rebuild_target BLOB NOT NULL);
CREATE TABLE message (message_id BLOB PRIMARY KEY, conversation_id BLOB NOT NULL, seq BLOB NOT NULL,
  sender_id BLOB NOT NULL, arrival INTEGER NOT NULL, told INTEGER NOT NULL DEFAULT 0, data BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX message_order ON message (conversation_id, seq);
CREATE INDEX message_untold ON message (told, arrival);
CREATE TABLE conversation (conversation_id BLOB PRIMARY KEY, anchor BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE outgoing (client_message_id BLOB PRIMARY KEY, place INTEGER NOT NULL, status TEXT NOT NULL,
  code INTEGER NOT NULL DEFAULT 0, row BLOB NOT NULL, coordinates BLOB) WITHOUT ROWID;
CREATE INDEX outgoing_order ON outgoing (status, place);
INSERT INTO device VALUES (1, 0, 1, NULL, x'0000000000000000', x'0000000000000000');
PRAGMA user_version=1;
