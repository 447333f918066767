BEGIN TRANSACTION;
CREATE TABLE budgets (
        budget TEXT PRIMARY KEY,
        place INTEGER NOT NULL UNIQUE,
        total INTEGER NOT NULL CHECK (total >= 0),
        held INTEGER NOT NULL CHECK (held >= 0),
        spent INTEGER NOT NULL CHECK (spent >= 0),
        expected_thousandths INTEGER NOT NULL,
        closed_thousandths INTEGER NOT NULL,
        user_cap INTEGER CHECK (user_cap >= 0),
        measure TEXT NOT NULL,
        minor_units INTEGER NOT NULL CHECK (minor_units >= 1),
        CONSTRAINT never_overspent CHECK (spent + held <= total)
    ) STRICT;
INSERT INTO "budgets" VALUES('budget',1,120,9,16,0,4500,9,'cost',100);
INSERT INTO "budgets" VALUES('pushes',2,50,0,2,0,0,NULL,'',1);
CREATE TABLE charges (
        decision INTEGER NOT NULL REFERENCES decisions,
        budget TEXT NOT NULL REFERENCES budgets,
        held INTEGER NOT NULL CHECK (held >= 0),
        open INTEGER NOT NULL CHECK (open >= 0 AND open <= held),
        ceiling INTEGER NOT NULL CHECK (ceiling >= held),
        spent INTEGER NOT NULL CHECK (spent >= 0),
        expected_thousandths INTEGER NOT NULL,
        PRIMARY KEY (decision, budget),
        CONSTRAINT never_above_the_ceiling CHECK (spent <= ceiling)
    ) STRICT;
INSERT INTO "charges" VALUES(1,'budget',10,0,10,7,4500);
INSERT INTO "charges" VALUES(1,'pushes',1,0,1,1,4500);
INSERT INTO "charges" VALUES(2,'budget',10,0,10,0,0);
INSERT INTO "charges" VALUES(2,'pushes',1,0,1,1,0);
INSERT INTO "charges" VALUES(4,'budget',10,0,10,9,0);
INSERT INTO "charges" VALUES(6,'budget',5,5,5,0,0);
INSERT INTO "charges" VALUES(7,'budget',4,4,4,0,0);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO "counters" VALUES('format',4);
INSERT INTO "counters" VALUES('seed',7);
INSERT INTO "counters" VALUES('decision',7);
INSERT INTO "counters" VALUES('entry',16);
INSERT INTO "counters" VALUES('note',1);
CREATE TABLE decisions (
        decision INTEGER PRIMARY KEY,
        request TEXT NOT NULL UNIQUE,
        fingerprint TEXT NOT NULL,
        user_id TEXT NOT NULL,
        step INTEGER NOT NULL,
        action TEXT NOT NULL,
        is_number INTEGER NOT NULL CHECK (is_number IN (0, 1)),
        propensity REAL NOT NULL CHECK (propensity > 0 AND propensity <= 1),
        probabilities TEXT NOT NULL,
        prices TEXT NOT NULL,
        plan TEXT NOT NULL,
        features TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('open', 'settled', 'released', 'expired')),
        decided_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        reward REAL,
        closed_at INTEGER,
        UNIQUE (user_id, step)
    ) STRICT;
INSERT INTO "decisions" VALUES(1,'a','ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb','u',0,'give 11',0,0.5,'{"a": 0.5}','[0.25]','plan','{"x": 1}','settled',1700000000000,1700000060000,1.5,1700000000005);
INSERT INTO "decisions" VALUES(2,'b','3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d','v',0,'give 11',0,0.5,'{"a": 0.5}','[0.25]','plan','{"x": 1}','released',1700000000000,1700000060000,0.25,1700000000006);
INSERT INTO "decisions" VALUES(3,'free','ad95d5fa651ba86d8923fe1238d24a4f1988a752acfe426ac72ac7c04471bc17','w',0,'give 0',0,0.5,'{"a": 0.5}','[0.25]','plan','{"x": 1}','released',1700000000000,1700000060000,2.0,1700000000007);
INSERT INTO "decisions" VALUES(4,'c','2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6','w',1,'give 10',0,0.5,'{"a": 0.5}','[0.25]','plan','{"x": 1}','settled',1700000000000,1700000060000,3.0,1700000060003);
INSERT INTO "decisions" VALUES(5,'free2','08e89cb28418939048448b6c4703578fce18d0021fdbea0ef7e28c04fced136e','x',0,'give 0',0,0.5,'{"a": 0.5}','[0.25]','plan','{"x": 1}','expired',1700000000000,1700000060000,NULL,1700000060000);
INSERT INTO "decisions" VALUES(6,'d','18ac3e7343f016890c510e93f935261169d9e3f565436429830faf0934f4f8e4','u',1,'give 5',0,0.5,'{"a": 0.5}','[0.25]','plan','{"x": 1}','open',1700000060000,1700000120000,NULL,NULL);
INSERT INTO "decisions" VALUES(7,'e','3f79bb7b435b05321651daefd374cdc681dc06faa65e374e38337b88ca046dea','y',0,'give 4',0,0.5,'{"a": 0.5}','[0.25]','plan','{"x": 1}','open',1700000060006,1700000120006,NULL,NULL);
CREATE TABLE entries (
        entry INTEGER PRIMARY KEY,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ('fund', 'hold', 'settle', 'release', 'expire')),
        decision INTEGER NOT NULL,
        budget TEXT NOT NULL REFERENCES budgets,
        total_change INTEGER NOT NULL,
        held_change INTEGER NOT NULL,
        spent_change INTEGER NOT NULL,
        expected_change INTEGER NOT NULL
    ) STRICT;
INSERT INTO "entries" VALUES(1,1700000000000,'fund',0,'budget',100,0,0,0);
INSERT INTO "entries" VALUES(2,1700000000000,'fund',0,'pushes',50,0,0,0);
INSERT INTO "entries" VALUES(3,1700000000000,'hold',1,'budget',0,10,0,4500);
INSERT INTO "entries" VALUES(4,1700000000000,'hold',1,'pushes',0,0,1,0);
INSERT INTO "entries" VALUES(5,1700000000000,'hold',2,'budget',0,10,0,0);
INSERT INTO "entries" VALUES(6,1700000000000,'hold',2,'pushes',0,0,1,0);
INSERT INTO "entries" VALUES(7,1700000000000,'hold',4,'budget',0,10,0,0);
INSERT INTO "entries" VALUES(8,1700000060000,'hold',6,'budget',0,5,0,0);
INSERT INTO "entries" VALUES(9,1700000000005,'settle',1,'budget',0,-10,7,-4500);
INSERT INTO "entries" VALUES(10,1700000000005,'settle',1,'pushes',0,0,0,0);
INSERT INTO "entries" VALUES(11,1700000000006,'release',2,'budget',0,-10,0,0);
INSERT INTO "entries" VALUES(12,1700000000006,'release',2,'pushes',0,0,0,0);
INSERT INTO "entries" VALUES(13,1700000060000,'expire',4,'budget',0,-10,0,0);
INSERT INTO "entries" VALUES(14,1700000060003,'settle',4,'budget',0,0,9,0);
INSERT INTO "entries" VALUES(15,1700000060005,'fund',0,'budget',20,0,0,0);
INSERT INTO "entries" VALUES(16,1700000060006,'hold',7,'budget',0,4,0,0);
CREATE TABLE price_notes (note INTEGER PRIMARY KEY, at INTEGER NOT NULL, content TEXT NOT NULL) STRICT;
INSERT INTO "price_notes" VALUES(1,1700000000008,'{"price": 1}');
CREATE TABLE tallies (
        step INTEGER NOT NULL,
        action TEXT NOT NULL,
        decided INTEGER NOT NULL,
        settled INTEGER NOT NULL,
        released INTEGER NOT NULL,
        expired INTEGER NOT NULL,
        reward REAL NOT NULL,
        spent INTEGER NOT NULL,
        PRIMARY KEY (step, action)
    ) STRICT;
INSERT INTO "tallies" VALUES(0,'give 11',2,1,1,0,1.75,7);
INSERT INTO "tallies" VALUES(0,'give 0',2,0,1,1,2.0,0);
INSERT INTO "tallies" VALUES(1,'give 10',1,1,0,0,3.0,9);
INSERT INTO "tallies" VALUES(1,'give 5',1,0,0,0,0.0,0);
INSERT INTO "tallies" VALUES(0,'give 4',1,0,0,0,0.0,0);
CREATE TABLE user_balances (
        user_id TEXT NOT NULL,
        budget TEXT NOT NULL REFERENCES budgets,
        held INTEGER NOT NULL CHECK (held >= 0),
        spent INTEGER NOT NULL CHECK (spent >= 0),
        user_cap INTEGER NOT NULL,
        PRIMARY KEY (user_id, budget),
        CONSTRAINT never_above_the_cap CHECK (spent + held <= user_cap)
    ) STRICT;
INSERT INTO "user_balances" VALUES('u','budget',5,7,12);
INSERT INTO "user_balances" VALUES('v','budget',0,0,9);
INSERT INTO "user_balances" VALUES('w','budget',0,9,9);
INSERT INTO "user_balances" VALUES('y','budget',4,0,9);
CREATE INDEX decisions_open ON decisions (expires_at) WHERE status = 'open';
CREATE TRIGGER entries_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries are only ever added'); END;
CREATE TRIGGER entries_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries are only ever added'); END;
COMMIT;
