package gossip

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/audit"
)

// Limits of audit logs.
const (
	maxLogs      = 12 // in one record
	maxWitnessed = 24 // remembered of one member
)

// A Witness is what a node remembers of the audit logs of a member: for each log the highest statement that the member signed. It survives
// as long as the member's record does. It is immutable.
type Witness struct {
	Logs []audit.SignedHead
	// Lost are lines that the member once stated, and that its current statements contradict. A log stays here while the member states it.
	Lost  []audit.LogHead
	proof *Record // the earlier record with the statements of Lost; nil: there are none
}

// witness returns what follows from a member's next record. before is nil for a new member. A statement counts only against the same
// member: whatever a member states about the log of another one accuses nobody.
func witness(before *Entry, r *Record) *Witness {
	if before == nil || before.Witness == nil {
		if len(r.Audit) == 0 {
			return nil
		}
		before = &Entry{Record: r, Witness: &Witness{}}
	}
	was, w := before.Witness, &Witness{proof: before.Witness.proof}
	lose := func(h audit.LogHead) {
		if !h.IsZero() && !slices.Contains(w.Lost, h) {
			w.Lost = append(w.Lost, h)
		}
	}
	for _, h := range r.Audit {
		lose(h.RolledBack)
		frozen := !h.RolledBack.IsZero() // keeps the last line before the log went back
		for _, x := range was.Lost {
			if x.Log == h.Last.Log {
				lose(x)
				frozen = true
			}
		}
		known := h
		for _, k := range was.Logs {
			same := h.Last.Log == k.Last.Log
			if h.Contradicts(k) {
				lose(k.Last)
				frozen = frozen || same
				if slices.ContainsFunc(before.Audit, func(b audit.SignedHead) bool { return b.Last == k.Last }) {
					w.proof = before.Record
				}
			}
			if same && frozen {
				known = k
			}
		}
		w.Logs = append(w.Logs, known)
	}
	for _, k := range was.Logs {
		if len(w.Logs) < maxWitnessed && !slices.ContainsFunc(w.Logs, func(h audit.SignedHead) bool { return h.Last.Log == k.Last.Log }) {
			k.RolledBack = audit.LogHead{} // the member no longer states it
			w.Logs = append(w.Logs, k)
		}
	}
	if len(w.Lost) == 0 {
		w.proof = nil
	}
	return w
}

// earlier returns the entry whose statements the record's member must account for: its current one, or the one that was forgotten. It
// returns nil if that is not by the same cluster with the same key, or with the key before a handover.
func earlier(was *Entry, t Tombstone, r *Record) *Entry {
	if was == nil && len(t.Record.Payload) > 0 {
		if old, err := parse(t.Record); err == nil {
			was = &Entry{Record: old, Witness: t.Witness}
		}
	}
	if was == nil || was.Witness == nil || was.ClusterID != r.ClusterID || was.Key != r.Key && !isHandedOver(r, was.Key) {
		return nil
	}
	return was
}

// returned returns the earlier record that the member itself should see again: the last one of its previous run, with which it can check
// its audit log, or the one that its current record contradicts.
func (e *Entry) returned(before *Entry) *Record {
	switch {
	case before == nil || before.Generation >= e.Generation:
		return nil
	case e.Witness != nil && e.Witness.proof != nil && e.Witness.proof.Generation < e.Generation:
		return e.Witness.proof
	case len(before.Audit) > 0:
		return before.Record
	}
	return nil
}

// owed adds to records the earlier record that m should see again. Each change of m's generation adds it once.
func (m *member) owed(records []Signed) []Signed {
	if m == nil || m.returned == nil {
		return records
	}
	records = append(records, m.returned.Signed)
	m.returned = nil
	return records
}

// readHead reads a statement about an audit log.
func (r *Record) readHead(c *cursor) error {
	if len(r.Audit) == maxLogs {
		return fmt.Errorf("at most %d audit logs are allowed", maxLogs)
	}
	var h audit.SignedHead
	text := func(to *audit.LogHead) func() error {
		return func() error {
			s, err := c.Text()
			if err == nil {
				*to, err = audit.ParseLogHead(s)
			}
			return err
		}
	}
	err := c.read(map[string]any{"role": &h.Role, "head": text(&h.Last), "prev": text(&h.Prev), "rolledBack": text(&h.RolledBack)})
	switch {
	case err != nil:
		return err
	case !isDNSLabel(h.Role):
		return errors.New("role is not a DNS label")
	case h.Last.IsZero():
		return errors.New("head is missing")
	case slices.ContainsFunc(r.Audit, func(have audit.SignedHead) bool { return have.Last.Log == h.Last.Log }):
		return errors.New("two statements are about one audit log")
	}
	r.Audit = append(r.Audit, h)
	return nil
}

// auditLogs returns the logs of the members of one cluster: of each the highest statement, and a line that a member lost.
func auditLogs(members []Member) []audit.SignedHead {
	var all []audit.SignedHead
	for _, m := range members {
		w := m.Witness
		if w == nil {
			w = witness(nil, m.Record)
		}
		if w == nil {
			continue
		}
		named := map[audit.LogHead]bool{} // lost lines; the current log of a process comes before its predecessor
		for _, h := range w.Logs {
			if h.RolledBack.IsZero() {
				h.RolledBack = w.lostOf(h)
			}
			if named[h.RolledBack] {
				h.RolledBack = audit.LogHead{}
			}
			named[h.RolledBack] = true
			i := slices.IndexFunc(all, func(have audit.SignedHead) bool { return have.Last.Log == h.Last.Log })
			if i < 0 {
				all = append(all, h)
				continue
			}
			have := &all[i]
			if h.Last.Head.Seq > have.Last.Head.Seq {
				have.Last, have.Prev = h.Last, h.Prev
			}
			if have.RolledBack.IsZero() {
				have.RolledBack = h.RolledBack
			}
		}
	}
	slices.SortFunc(all, func(a, b audit.SignedHead) int {
		return cmp.Or(strings.Compare(a.Role, b.Role), strings.Compare(a.Last.Log, b.Last.Log))
	})
	return all
}

// lostOf returns the line that h's log lost.
func (w *Witness) lostOf(h audit.SignedHead) audit.LogHead {
	for _, x := range w.Lost {
		if x.Log == h.Last.Log || x.Log == h.Prev.Log {
			return x
		}
	}
	return audit.LogHead{}
}
