package gossip

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// line returns a line of the audit log with that letter. Two lines with one number and another fork have different hashes.
func line(log string, seq uint64, fork byte) audit.LogHead {
	return audit.LogHead{Log: strings.Repeat(log, 16), Head: audit.Head{Seq: seq, Hash: audit.Hash{byte(seq), byte(seq >> 8), fork}}}
}

// states returns a statement of the access server.
func states(last audit.LogHead, prev ...audit.LogHead) audit.SignedHead {
	h := audit.SignedHead{Role: "access", Last: last}
	if len(prev) > 0 {
		h.Prev = prev[0]
	}
	return h
}

// restartWith restarts a node with other statements about its audit logs.
func (s *sim) restartWith(n *simNode, down time.Duration, logs ...audit.SignedHead) {
	s.stop(n)
	s.run(down)
	n.memory = n.view.memory(n.floor)
	n.facts.Audit = logs
	s.start(n)
	s.run(20 * time.Second)
}

// state announces other statements in the same run.
func (s *sim) state(n *simNode, logs ...audit.SignedHead) {
	f := n.facts
	f.Audit = logs
	s.announce(n, f, Up)
	s.run(20 * time.Second)
}

// logsOf returns what x lists of n's audit logs.
func logsOf(x, n *simNode) (logs []audit.SignedHead) {
	clusters, _ := x.snapshot(x.wall()).Clusters(true)
	for _, c := range clusters {
		if c.ID == n.facts.ClusterID {
			logs = append(logs, c.AuditLogs...)
		}
	}
	return logs
}

// lostBy returns the lines that n's audit logs lack in the list of x.
func lostBy(x, n *simNode) (lost []audit.LogHead) {
	for _, h := range logsOf(x, n) {
		if !h.RolledBack.IsZero() {
			lost = append(lost, h.RolledBack)
		}
	}
	return lost
}

// TestAU07_OthersWitness: the other members remember the highest statement of a member about each audit log, name a log that went back, and
// return the earlier statement to the member itself. A log that goes on, is rotated or is started again with its predecessor's name accuses
// nobody.
func TestAU07_OthersWitness(t *testing.T) {
	first, before := states(line("A", 500, 0)), states(line("A", 400, 0))
	named := states(line("A", 600, 1)) // the server has found the loss itself
	named.RolledBack = first.Last
	for _, tt := range []struct {
		why  string
		next []audit.SignedHead // after a restart
		lost []audit.LogHead
	}{
		{"the log goes on", []audit.SignedHead{states(line("A", 501, 0))}, nil},
		{"the log is as it was", []audit.SignedHead{first}, nil},
		{"an older copy", []audit.SignedHead{before}, []audit.LogHead{first.Last}},
		{"another line with the same number", []audit.SignedHead{states(line("A", 500, 1))}, []audit.LogHead{first.Last}},
		{"an older copy that grew past the statement: only the server can see that", []audit.SignedHead{states(line("A", 600, 1))}, nil},
		{"the same, and the server has seen it", []audit.SignedHead{named}, []audit.LogHead{first.Last}},
		{"a log beside one that the server calls rolled back", []audit.SignedHead{named, states(line("B", 3, 0))}, []audit.LogHead{first.Last}},
		{"a new log that names its predecessor", []audit.SignedHead{states(line("B", 1, 0), line("A", 500, 0))}, nil},
		{"a new log that names a later line of its predecessor", []audit.SignedHead{states(line("B", 1, 0), line("A", 510, 0))}, nil},
		{"a new log whose predecessor was cut", []audit.SignedHead{states(line("B", 1, 0), before.Last)}, []audit.LogHead{first.Last}},
		{"a new log without predecessor", []audit.SignedHead{states(line("B", 1, 0))}, nil},
		{"no log any more", nil, nil},
		{"another log beside it", []audit.SignedHead{first, states(line("B", 3, 0))}, nil},
	} {
		t.Run(tt.why, func(t *testing.T) {
			s := newSim(t, 700, 4, Settings{})
			n := s.nodes[0]
			n.facts.Audit = []audit.SignedHead{first}
			events := 0
			for _, x := range s.nodes[1:] {
				x.onEvent = func(ev Event) {
					if ev.Kind == EventRolledBack && ev.Node == n.facts.Node {
						events++
					}
				}
			}
			s.startAll()
			s.run(20 * time.Second)
			s.restartWith(n, time.Minute, tt.next...)
			if diff := cmp.Diff([]audit.SignedHead{first}, n.statements); diff != "" {
				t.Errorf("the server itself gets back (-want +got):\n%s", diff)
			}
			for _, x := range s.nodes[1:] {
				if diff := cmp.Diff(tt.lost, lostBy(x, n)); diff != "" {
					t.Errorf("node %d lists as lost (-want +got):\n%s", x.index, diff)
				}
				if logs := logsOf(x, n); !slices.ContainsFunc(logs, func(h audit.SignedHead) bool { return h.Last.Head.Seq >= first.Last.Head.Seq }) {
					t.Errorf("node %d does not remember the highest statement: %v", x.index, logs)
				}
			}
			if want := len(tt.lost) * 3; events != want {
				t.Errorf("%d events, want %d", events, want)
			}
			if n := s.rejected(Signature); n > 0 {
				t.Errorf("%d records were refused", n)
			}
		})
	}
}

// TestAU07_ALossStays: a log that went back remains so while the member states it, also when it grows past the lost line. A new log ends it.
func TestAU07_ALossStays(t *testing.T) {
	s := newSim(t, 701, 3, Settings{})
	n, x := s.nodes[0], s.nodes[1]
	first := states(line("A", 500, 0))
	n.facts.Audit = []audit.SignedHead{first}
	s.startAll()
	s.run(20 * time.Second)
	s.restartWith(n, time.Minute, states(line("A", 400, 0)))
	for _, seq := range []uint64{450, 499, 700, 900} {
		s.state(n, states(line("A", seq, 1)))
		if diff := cmp.Diff([]audit.LogHead{first.Last}, lostBy(x, n)); diff != "" {
			t.Errorf("at line %d (-want +got):\n%s", seq, diff)
		}
	}
	n.statements = nil
	s.restartWith(n, time.Minute, states(line("A", 901, 1)))
	if diff := cmp.Diff([]audit.SignedHead{first}, n.statements); diff != "" {
		t.Errorf("after another restart the server gets back (-want +got):\n%s", diff)
	}
	s.restartWith(n, time.Minute, states(line("B", 1, 0), line("A", 901, 1)))
	if lost := lostBy(x, n); len(lost) > 0 {
		t.Errorf("the administrator has started a new log, and the list still names %v", lost)
	}
}

// TestAU07_ItsOwnWord: a member that has found the loss itself says so, and the others keep the lost line until it starts a new log.
func TestAU07_ItsOwnWord(t *testing.T) {
	s := newSim(t, 705, 3, Settings{})
	n, x := s.nodes[0], s.nodes[1]
	first, grown := states(line("A", 500, 0)), states(line("A", 600, 1))
	n.facts.Audit = []audit.SignedHead{first}
	s.startAll()
	s.run(20 * time.Second)
	s.restartWith(n, time.Minute, grown)
	if lost := lostBy(x, n); len(lost) > 0 {
		t.Errorf("nobody can see the loss yet, and the list names %v", lost)
	}
	grown.RolledBack = first.Last
	s.state(n, grown)
	grown.RolledBack = audit.LogHead{}
	for range 2 { // also when it no longer says so
		if diff := cmp.Diff([]audit.LogHead{first.Last}, lostBy(x, n)); diff != "" {
			t.Errorf("lost (-want +got):\n%s", diff)
		}
		s.state(n, grown)
	}
	s.restartWith(n, time.Minute, states(line("B", 1, 0), line("A", 600, 1)))
	if lost := lostBy(x, n); len(lost) > 0 {
		t.Errorf("after a new log the list still names %v", lost)
	}
}

// TestAU07_AnotherKey: a cluster that hands over to another key remains the same witness's subject. One that claims the same node and cluster
// with a key of its own starts without a past.
func TestAU07_AnotherKey(t *testing.T) {
	for name, handed := range map[string]bool{"handed over": true, "a stranger's": false} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 706, 3, Settings{})
			n, x := s.nodes[0], s.nodes[1]
			first := states(line("A", 500, 0))
			n.facts.Audit = []audit.SignedHead{first}
			s.startAll()
			s.run(20 * time.Second)
			next := s.nodes[2]
			if handed {
				n.facts.PrevKey, n.facts.PrevSig = n.facts.Key, n.sign(RekeyMessage(n.facts.ClusterID, next.facts.Key))
			}
			n.key, n.facts.Key = next.key, next.facts.Key
			s.restartWith(n, time.Minute, states(line("A", 400, 0)))
			var want []audit.LogHead
			if handed {
				want = []audit.LogHead{first.Last}
			}
			if diff := cmp.Diff(want, lostBy(x, n)); diff != "" {
				t.Errorf("lost (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAU07_ForgottenAndBack: the witness survives as the record does: also while the member is forgotten.
func TestAU07_ForgottenAndBack(t *testing.T) {
	s := newSim(t, 702, 3, Settings{ForgetAfter: time.Minute})
	n, x := s.nodes[0], s.nodes[1]
	first := states(line("A", 500, 0))
	n.facts.Audit = []audit.SignedHead{first}
	s.startAll()
	s.run(20 * time.Second)
	s.stop(n)
	s.run(5 * time.Minute)
	if x.members[n.facts.Node] != nil {
		t.Fatal("it is not forgotten")
	}
	s.restartWith(n, 0, states(line("A", 400, 0)))
	if diff := cmp.Diff([]audit.LogHead{first.Last}, lostBy(x, n)); diff != "" {
		t.Errorf("lost (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]audit.SignedHead{first}, n.statements); diff != "" {
		t.Errorf("the server itself gets back (-want +got):\n%s", diff)
	}
}

// TestAU07_OnlyItsOwnLogs: a member that states a higher line of another member's log accuses nobody but itself, and its word does not reach
// the entry of the other cluster. Two servers of one cluster, which state the log of a third process at different times, accuse nobody.
func TestAU07_OnlyItsOwnLogs(t *testing.T) {
	s := newSim(t, 703, 5, Settings{})
	n, replica, liar, x := s.nodes[0], s.nodes[1], s.nodes[2], s.nodes[3]
	replica.facts.ClusterID, replica.facts.ClusterName, replica.facts.Key, replica.key = n.facts.ClusterID, n.facts.ClusterName, n.facts.Key, n.key
	own, forged := states(line("A", 500, 0)), states(line("A", 1<<40, 9))
	operator := func(seq uint64) audit.SignedHead { return audit.SignedHead{Role: "operator", Last: line("O", seq, 0)} }
	n.facts.Audit = []audit.SignedHead{own, operator(100)}
	replica.facts.Audit = []audit.SignedHead{states(line("B", 7, 0)), operator(90)}
	liar.facts.Audit = []audit.SignedHead{forged}
	s.startAll()
	s.run(20 * time.Second)
	s.restartWith(n, time.Minute, states(line("A", 501, 0)), operator(110))
	s.state(liar, states(line("A", 1<<41, 9)), states(line("C", 1, 0), line("A", 1<<42, 9)))

	// It also sends a record in the name of the other node, signed with its own key, to that node and to others.
	stolen := n.facts
	stolen.Audit = []audit.SignedHead{forged}
	for _, key := range []httpapi.PublicKey{liar.facts.Key, n.facts.Key} {
		stolen.Key = key
		for generation := n.own.Generation - 1; generation <= n.own.Generation+1; generation++ {
			if r, err := Seal(stolen, Order{generation, 1}, Up, liar.sign); err == nil {
				for _, to := range []*simNode{n, x} {
					to.engine.mergeRecords(liar.facts.Node, message{Records: []Signed{r.Signed}}, to.wall())
				}
			}
		}
	}
	s.run(20 * time.Second)
	want := []audit.SignedHead{states(line("A", 501, 0)), states(line("B", 7, 0)), operator(110)}
	for _, y := range []*simNode{x, replica, n} {
		if diff := cmp.Diff(want, logsOf(y, n)); diff != "" {
			t.Errorf("node %d lists (-want +got):\n%s", y.index, diff)
		}
	}
	if diff := cmp.Diff([]audit.SignedHead{own, operator(100)}, n.statements); diff != "" {
		t.Errorf("the server itself gets back (-want +got):\n%s", diff)
	}
}

// TestAU07_IdleRoundsAreDigests: an earlier record is returned once for each restart, not in every round.
func TestAU07_IdleRoundsAreDigests(t *testing.T) {
	s := newSim(t, 704, 10, Settings{})
	for i, n := range s.nodes {
		n.facts.Audit = []audit.SignedHead{states(line(string(rune('A'+i)), 500, 0))}
	}
	s.startAll()
	s.run(20 * time.Second)
	s.restartWith(s.nodes[0], time.Minute, states(line("A", 400, 0)))
	s.run(time.Minute)
	s.reset()
	deltas := func() (n uint64) {
		for _, x := range s.nodes {
			n += x.stats.Messages[kindDelta]
		}
		return n
	}
	before := deltas()
	s.run(time.Minute)
	if n := deltas() - before; n > 0 {
		t.Errorf("%d messages with records in a minute without changes", n)
	}
}

// TestStatements: the limits of statements, and what a record leaves out when there is no room.
func TestStatements(t *testing.T) {
	f, _ := one(t)
	_, key := payload(t)
	sign := (&simNode{key: key}).sign
	many := func(n int) (logs []audit.SignedHead) {
		for i := range n {
			logs = append(logs, audit.SignedHead{Role: "operator", Last: line(string(rune('A'+i)), 1<<40, 0)})
			if i == 0 || n > 12 {
				logs[i].Prev, logs[i].RolledBack = line("Z", 1<<40, 0), line("Y", 1<<40, 0)
			}
		}
		return logs
	}
	for _, tt := range []struct{ logs, labels, want int }{{0, 2, 0}, {1, 2, 1}, {12, 2, 12}, {20, 2, 10}, {12, 32, 1}} {
		f.Audit, f.Labels = many(tt.logs), map[string]string{}
		for i := range tt.labels {
			f.Labels[fmt.Sprint("label-", i)] = "v"
			if tt.labels == 32 {
				f.Labels[fmt.Sprint("label-", i)] = strings.Repeat("v", 63)
			}
		}
		r, err := Seal(f, Order{7, 1}, Up, sign)
		if err != nil {
			t.Errorf("%d statements and %d labels: %v", tt.logs, tt.labels, err)
			continue
		}
		t.Logf("%d statements and %d labels: %d bytes", tt.logs, tt.labels, len(r.Signed.Payload))
		if len(r.Audit) < tt.want || len(r.Audit) > maxLogs {
			t.Errorf("%d statements and %d labels: %d statements in the record, want at least %d", tt.logs, tt.labels, len(r.Audit), tt.want)
		}
		if diff := cmp.Diff(f.Audit[:len(r.Audit)], r.Audit); len(r.Audit) > 0 && diff != "" {
			t.Errorf("read back (-want +got):\n%s", diff)
		}
	}
	f.Labels = nil
	f.Audit = many(1)
	r, err := Seal(f, Order{7, 1}, Up, sign)
	if err != nil {
		t.Fatal(err)
	}
	good := string(r.Signed.Payload)
	_, list, _ := strings.Cut(good, `"audit":[`)
	one := strings.TrimSuffix(list, "]}")
	for why, bad := range map[string]string{
		"no log":               `{"role":"access"}`,
		"no role":              `{"head":"` + line("A", 1, 0).String() + `"}`,
		"a role of shell":      strings.Replace(one, "operator", "$(id)", 1),
		"a log id of markup":   strings.Replace(one, "AAAA", "<b>A", 1),
		"line 0":               strings.ReplaceAll(one, "1099511627776", "0"),
		"a line beyond 2^53":   strings.ReplaceAll(one, "1099511627776", "9007199254740993"),
		"a short hash":         strings.Replace(one, "00000000", "", 1),
		"one log twice":        one + "," + one,
		"13 logs":              strings.Repeat(one+",", 12) + one,
		"text":                 `"AAAA"`,
		"null":                 "null",
		"too deep":             `{"role":"access","head":"` + line("A", 1, 0).String() + `","x":[[]]}`,
		"a predecessor of air": strings.Replace(one, `"prev":"Z`, `"prev":"z`, 1),
	} {
		text := []byte(strings.Replace(good, one, bad, 1))
		if _, err := Open(Signed{text, sign(signedMessage(text))}); err == nil {
			t.Errorf("%s: taken", why)
		}
	}
	newer := []byte(strings.Replace(good, `{"role"`, `{"since":"2026","later":[1],"role"`, 1))
	if _, err := Open(Signed{newer, sign(signedMessage(newer))}); err != nil {
		t.Errorf("a statement of a newer version: %v", err)
	}
}

// previousRecord is a record as the version before statements about audit logs wrote it, for the key and the facts of one(t).
const previousRecord = `{"v":1,"cluster":{"id":"5e0c3f5a-6f0e-4f0c-9a63-000000000000","name":"prod-0"},"node":"NODE","host":"tka-0.tail1234.ts.net",` +
	`"ips":["100.64.0.0","fd7a:115c:a1e0::1"],"port":7946,"url":"https://tka-0.tail1234.ts.net","apiEndpoint":"https://k8s.prod-0.example:6443","apiPort":6443,` +
	`"caHash":"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08","labels":{"env":"prod","region":"eu-central"},"status":"up",` +
	`"generation":7,"version":1,"key":"KEY","software":"0.4.0"}`

// TestPreviousRecordFormat: a record without statements has the bytes of the previous version, so that version's signature verifies. A record
// with statements is, for the previous version, one with an unknown field: it verifies, and it is relayed byte for byte.
func TestPreviousRecordFormat(t *testing.T) {
	f, key := one(t)
	sign := (&simNode{key: key}).sign
	old := strings.NewReplacer("NODE", f.Node, "KEY", f.Key.String()).Replace(previousRecord)
	signature := sign([]byte("tailplane-record-v1\x00" + old))
	r, err := Open(Signed{[]byte(old), signature})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Audit) > 0 {
		t.Errorf("it states %v", r.Audit)
	}
	same, err := Seal(f, Order{7, 1}, Up, sign)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(old, string(same.Signed.Payload)); diff != "" {
		t.Errorf("a record without statements (-previous +now):\n%s", diff)
	}

	f.Audit = []audit.SignedHead{states(line("A", 500, 0), line("B", 4, 0))}
	now, err := Seal(f, Order{7, 2}, Up, sign)
	if err != nil {
		t.Fatal(err)
	}
	// To the previous version the field is as unknown as another name is to this one.
	unknown := []byte(strings.Replace(string(now.Signed.Payload), `"audit":`, `"adiut":`, 1))
	v := NewView(Rules{Self: "nSELF", Key: httpapi.PublicKey{9}, Settings: Settings{MaxMembers: 9}}, Memory{})
	previous, err := Open(Signed{unknown, sign(signedMessage(unknown))})
	if err != nil {
		t.Fatalf("the previous version refuses it: %v", err)
	}
	m := NewNetmap([]Peer{{f.Node, f.Host, f.IPs}})
	for _, x := range []*Record{r, previous} {
		var changes []Change
		if v, changes = Merge(v, Delivery{f.Node, []*Record{x}, m}, simEpoch); len(changes) != 1 || changes[0].Entry == nil {
			t.Errorf("version %d: %+v", x.Version, changes)
		}
	}
	e, _ := v.entries.Get(f.Node)
	if !e.Signed.equal(previous.Signed) {
		t.Error("the previous version relays other bytes")
	}
}

// FuzzStatements: whatever a record states, reading it and comparing it with an earlier one ends, within the limits.
func FuzzStatements(f *testing.F) {
	facts, key := one(f)
	sign := (&simNode{key: key}).sign
	facts.Audit = []audit.SignedHead{states(line("A", 500, 0), line("B", 4, 0)), {Role: "operator", Last: line("C", 1, 0), RolledBack: line("C", 2, 0)}}
	good, err := Seal(facts, Order{7, 1}, Up, sign)
	if err != nil {
		f.Fatal(err)
	}
	before, list, _ := strings.Cut(string(good.Signed.Payload), `"audit":`)
	f.Add(strings.TrimSuffix(list, "}"), strings.TrimSuffix(list, "}"))
	f.Add("[]", strings.Replace(list, "500:", "499:", 1))
	f.Add("[{}]", "null")
	f.Fuzz(func(t *testing.T, first, second string) {
		was := &Entry{Record: good, Witness: witness(nil, good)}
		for _, list := range []string{first, second} {
			text := []byte(before + `"audit":` + list + "}")
			r, err := Open(Signed{text, sign(signedMessage(text))})
			if err != nil {
				continue
			}
			w := witness(was, r)
			switch {
			case len(r.Audit) > maxLogs:
				t.Fatalf("%d statements in a record", len(r.Audit))
			case len(w.Logs) > maxWitnessed:
				t.Fatalf("%d logs are remembered", len(w.Logs))
			case len(w.Lost) > maxLogs*maxWitnessed:
				t.Fatalf("%d lines are lost", len(w.Lost))
			}
			for _, h := range r.Audit {
				if !slices.ContainsFunc(w.Logs, func(k audit.SignedHead) bool { return k.Last.Log == h.Last.Log }) {
					t.Fatalf("the log %s is not remembered", h.Last.Log)
				}
			}
			was = &Entry{Record: r, Witness: w}
		}
	})
}
