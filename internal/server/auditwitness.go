package server

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/settings"
)

// Times of the statements about audit logs. Statements are rare, because each one is a write to the API server and a new gossip record.
const (
	stateEvery = 10 * time.Minute // at most, and only after a change
	stateCheck = 10 * time.Second
	sealTime   = 2 * time.Second // for the last statement of a run
)

// An auditWitness keeps the last signed line of this process's audit log where the process's disk is not: on a Lease, and in the access
// servers of other clusters. It compares the log with what comes back from there.
type auditWitness struct {
	record *audit.Log
	log    *slog.Logger
	found  func(lost audit.LogHead, source string) // called once for each lost line

	writer string
	lease  string // "": none
	notes  interface {
		list(ctx context.Context, lease string) ([]auditNote, error)
		set(ctx context.Context, lease string, note auditNote) error
	}
	others []otherLog // that this process speaks for in gossip

	recalled chan []audit.SignedHead

	mu      sync.Mutex
	own     audit.SignedHead   // as last stated; zero: nothing
	stated  time.Time          // when own was stated
	foreign []audit.SignedHead // of others
	lost    []audit.LogHead
	count   atomic.Int64 // of lost
}

// An otherLog is the log of a role that is no member of gossip.
type otherLog struct{ role, lease string }

// gossipless are the roles whose audit logs the access server states.
var gossipless = []otherLog{{string(settings.OperatorRole), operatorLease}, {string(settings.PlaneRole), PlaneLease}, {string(settings.ProxyRole), proxyLease}}

// predecessor returns the last known line of the log that this process wrote before: the latest note of its role and writer. The notes are for
// begin. A failure to read them is no reason not to start.
func (w *auditWitness) predecessor(ctx context.Context, role string) (prev audit.LogHead, notes []auditNote) {
	if w.lease == "" {
		return prev, nil
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	notes, err := w.notes.list(ctx, w.lease)
	if err != nil {
		w.log.Warn("reading the last known line of the audit log failed; this run is not compared with it", "lease", w.lease, "err", err)
	}
	notes = slices.DeleteFunc(notes, func(n auditNote) bool { return n.Role != role })
	if i := slices.IndexFunc(notes, func(n auditNote) bool { return n.Writer == w.writer }); i >= 0 {
		prev = notes[i].Last
	}
	return prev, notes
}

// begin compares the opened log with the notes of earlier runs and makes the first statement.
func (w *auditWitness) begin(ctx context.Context, notes []auditNote) {
	ctx, cancel := context.WithTimeout(ctx, sealTime)
	defer cancel()
	if err := w.record.Sign(ctx); err != nil {
		w.log.Warn("signing the audit log takes long", "err", err)
	}
	for _, n := range notes {
		if n.Writer != w.writer { // a pod has another name after each start, and another replica has another predecessor
			n.Prev = audit.LogHead{}
		}
		w.check(n.SignedHead, "the Lease "+w.lease)
		if _, ok := w.record.Signed(); !ok { // the disk is slow
			w.recall([]audit.SignedHead{n.SignedHead})
		}
	}
	w.state(time.Now())
}

// check compares the audit log with an earlier statement about it.
func (w *auditWitness) check(earlier audit.SignedHead, source string) {
	lost, err := w.record.Check(earlier)
	if err != nil {
		w.log.Warn("comparing the audit log with an earlier statement failed", "line", earlier.Last.String(), "err", err)
	}
	if lost.IsZero() {
		return
	}
	w.mu.Lock()
	known := slices.Contains(w.lost, lost)
	if !known {
		w.lost = append(w.lost, lost)
		w.count.Add(1)
		w.own.RolledBack = lost // at once, not with the next statement
	}
	w.mu.Unlock()
	if !known {
		w.found(lost, source)
	}
}

// state makes a new statement about the log and reports whether it differs from the last one.
func (w *auditWitness) state(now time.Time) bool {
	h, ok := w.record.Signed()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lost) > 0 {
		h.RolledBack = w.lost[0]
	}
	if !ok || h == w.own {
		return false
	}
	w.own, w.stated = h, now
	return true
}

// statements returns what this server's gossip record states: its own log first.
func (w *auditWitness) statements() []audit.SignedHead {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.own.Last.IsZero() {
		return w.foreign
	}
	return append([]audit.SignedHead{w.own}, w.foreign...)
}

// recall compares the log with statements that another server has returned. It does not block.
func (w *auditWitness) recall(earlier []audit.SignedHead) {
	if w == nil {
		return
	}
	select {
	case w.recalled <- earlier:
	default: // an earlier one is being compared; other servers return the same
	}
}

// run keeps the statements current until ctx ends.
func (w *auditWitness) run(ctx context.Context) error {
	tick := time.NewTicker(stateCheck)
	defer tick.Stop()
	w.note(ctx)
	w.readOthers(ctx)
	read := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case earlier := <-w.recalled:
			for _, h := range earlier {
				w.check(h, "an earlier statement that was kept elsewhere")
			}
			w.note(ctx)
		case now := <-tick.C:
			w.mu.Lock()
			due := now.Sub(w.stated) >= stateEvery
			w.mu.Unlock()
			if due && w.state(now) {
				w.note(ctx)
			}
			if now.Sub(read) >= stateEvery {
				w.readOthers(ctx)
				read = now
			}
		}
	}
}

// note writes the statement on the Lease. After a loss it notes the lost line instead of the later ones: a new log then names it as the end of
// its predecessor.
func (w *auditWitness) note(ctx context.Context) {
	w.mu.Lock()
	own, lost := w.own, slices.Clone(w.lost)
	w.mu.Unlock()
	if w.lease == "" || own.Last.IsZero() {
		return
	}
	lost = slices.DeleteFunc(lost, func(h audit.LogHead) bool { return h.Log != own.Last.Log })
	if len(lost) > 0 {
		own.Last = slices.MaxFunc(lost, func(a, b audit.LogHead) int { return cmp.Compare(a.Head.Seq, b.Head.Seq) })
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := w.notes.set(ctx, w.lease, auditNote{own, w.writer, time.Now().UTC().Truncate(time.Second)}); err != nil && ctx.Err() == nil {
		w.log.Warn("noting the last line of the audit log failed; trying again with the next one", "lease", w.lease, "err", err)
	}
}

// readOthers reads the notes of the roles that this process speaks for.
func (w *auditWitness) readOthers(ctx context.Context) {
	var all []audit.SignedHead
	for _, o := range w.others {
		ctx, cancel := context.WithTimeout(ctx, startLimit)
		notes, err := w.notes.list(ctx, o.lease)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				w.log.Warn("reading the last lines of another audit log failed; other clusters do not witness it now", "lease", o.lease, "err", err)
			}
			return // keep what is stated
		}
		for _, n := range notes {
			if n.Role == o.role {
				all = append(all, n.SignedHead)
			}
		}
	}
	w.mu.Lock()
	w.foreign = all
	w.mu.Unlock()
}

// seal signs the log and makes a statement, for the record with which the server leaves.
func (w *auditWitness) seal(ctx context.Context) {
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sealTime)
	defer cancel()
	if err := w.record.Sign(ctx); err != nil {
		w.log.Warn("signing the audit log takes long", "err", err)
	}
	w.state(time.Now())
}

// end notes the last line of the closed log.
func (w *auditWitness) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sealTime)
	defer cancel()
	w.state(time.Now())
	w.note(ctx)
}

// newAuditWitness returns the witness of the log that this process writes as role.
func (p *process) newAuditWitness(role settings.Role) (*auditWitness, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	notes, err := newAuditNotes(p.config, p.set.Signin.SystemNamespace)
	if err != nil {
		return nil, err
	}
	w := &auditWitness{log: p.log, writer: host + ":" + p.set.Audit.File, lease: auditLease(role), notes: notes, recalled: make(chan []audit.SignedHead, 16), found: p.recordRolledBack}
	if role == settings.AccessRole {
		if w.others = gossipless; !p.set.Gossip.Enabled { // it has no right to the Leases
			w.lease, w.others = "", nil
		}
	}
	return w, nil
}

// recordRolledBack logs and records that the audit log lacks a line that it once had.
func (p *process) recordRolledBack(lost audit.LogHead, source string) {
	p.log.Error("the audit log was rolled back: it lacks a line that it once had; keep the file and compare it with tka audit verify --witness",
		"code", "rolledBack", "file", p.set.Audit.File, "lost", lost.String(), "witness", source)
	p.recordAction(audit.Entry{Verb: access.AuditRolledBack, Object: lost.Log, Reason: "The audit log lacks a line that it once had. Witness: " + source + ".",
		Args: map[string]string{"line": lost.Head.String()}})
}
