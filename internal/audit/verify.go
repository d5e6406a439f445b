package audit

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// A Check is the input of Verify.
type Check struct {
	// Keys are the keys that may sign. If Keys is empty, Verify trusts the key of the first header.
	// It then detects changes by an attacker who does not have that key, but it does not prove who
	// made the audit log.
	Keys []PublicKey
	// Heads were stored elsewhere, and each must still be in the audit log. They show what no
	// signature can: that the end is missing.
	Heads []Head
	// Witness, if set, is what servers of the cluster stated about its audit logs. A log that lacks a stated line has a finding,
	// and so has a log that no statement mentions while statements mention other logs of its role.
	Witness *Witness
	// Log, if set, is the ID of the audit log to check. Lines of other logs and other text are
	// skipped. Use it for the output of a log collector.
	Log string
}

// A Witness holds the statements about the audit logs of one cluster.
type Witness struct {
	Cluster, ClusterID string // of the logs; if ClusterID is set, the checked log must be of that cluster
	Statements         []SignedHead
}

// A Source is one file of an audit log.
type Source struct {
	Name string
	io.Reader
}

// maxFindings limits the report if a file is not an audit log at all.
const maxFindings = 1000

// Verify checks an audit log, offline. The sources are its files, in any order. The error is a
// failure to read them; errors in the audit log are in the Report.
func Verify(c Check, sources ...Source) (Report, error) {
	v := &verifier{check: c, trusted: map[string]PublicKey{}, untrusted: map[string]PublicKey{}, retired: map[string]bool{},
		heads: map[uint64]headResult{}, brokenAt: -1, foreignAt: -1, badAt: -1}
	v.report = Report{Log: c.Log, Pinned: len(c.Keys) > 0, Keys: []PublicKey{}, Unchecked: []Head{}, Findings: []Finding{}}
	for _, k := range c.Keys {
		v.trusted[k.ID()] = k
	}
	v.expected = slices.Clone(c.Heads)
	if c.Witness != nil {
		for _, s := range c.Witness.Statements {
			for _, h := range [...]LogHead{s.Last, s.Prev, s.RolledBack} {
				v.expected = append(v.expected, h.Head)
			}
		}
	}
	for _, h := range v.expected {
		v.heads[h.Seq] = headResult{}
	}
	for _, s := range inOrder(sources) {
		v.at = Place{File: s.Name}
		v.ended = true
		for text, err := range linesOf(s) {
			if err != nil {
				return v.report, fmt.Errorf("read %s: %w", s.Name, err)
			}
			v.at = Place{File: s.Name, Line: v.at.Line + 1}
			v.ended = text.ended
			v.readLine(text.line)
		}
	}
	v.finish()
	return v.report, nil
}

// inOrder sorts the files by the number of their first line if every file has one.
func inOrder(sources []Source) []Source {
	type numbered struct {
		Source
		seq uint64
	}
	var all []numbered
	for _, s := range sources {
		r := bufio.NewReader(s)
		begin, _ := r.Peek(len(openSeq) + 20) // the later read returns the error again
		n := numbered{Source: Source{s.Name, r}}
		rest, ok := bytes.CutPrefix(begin, []byte(openSeq))
		for ok && len(rest) > 0 && rest[0] >= '0' && rest[0] <= '9' && n.seq < maxSeq {
			n.seq, rest = n.seq*10+uint64(rest[0]-'0'), rest[1:]
		}
		all = append(all, n)
	}
	if !slices.ContainsFunc(all, func(n numbered) bool { return n.seq == 0 }) {
		slices.SortStableFunc(all, func(a, b numbered) int { return cmp.Compare(a.seq, b.seq) })
	}
	out := make([]Source, len(all))
	for i, n := range all {
		out[i] = n.Source
	}
	return out
}

// A verifier reads an audit log in one pass. It keeps 24 bytes per line.
type verifier struct {
	check  Check
	report Report
	at     Place // the current line
	ended  bool  // the current line ends with a line feed

	begun    bool
	clean    bool // the tip, ignoring KeyChange lines after it, ends a file or a run
	tip      tip  // the line that the next line must follow
	fork     tip  // the last line of a fork of the chain
	accepted []acceptedLine
	index    map[uint64]int // position in seen by sequence number; built on first use
	holes    []gap

	invalid pending // text after the tip that is not a valid line

	trusted, untrusted map[string]PublicKey // by key ID
	retired            map[string]bool
	since              Place // the first line that no signature covers yet

	brokenAt  int // index of the finding of a chain break that no signature has resolved yet; -1: none
	broken    chainBreak
	foreignAt int // index of the finding that covers the previous line as part of another log; -1: none
	badAt     int // index of the finding of bad signatures since the last good one; -1: none

	expected []Head                // lines that Check.Heads and Check.Witness name
	heads    map[uint64]headResult // by the sequence number of expected
}

// A tip is a line, with the hashes that the next line may name as its predecessor.
type tip struct {
	Place
	hash, real Hash // the stored hash and the computed hash
	wild       bool // the line is unreadable, so any predecessor hash is accepted
}

func (t tip) leadsTo(prev Hash) bool { return t.wild || prev == t.hash || prev == t.real }

// An acceptedLine is an accepted line.
type acceptedLine struct{ seq, hash, prev uint64 }

func hashPrefix(h Hash) uint64 { return binary.BigEndian.Uint64(h[:]) }

// A gap is a range of missing sequence numbers.
type gap struct {
	from, to uint64
	filled   int64
	finding  int
}

// pending is text that is not a valid line and that no later line has accounted for yet.
type pending struct {
	junk
	at    Place // its first line
	whole int   // number of its lines that have the layout of a line
	last  tip   // its last line; wild if that line does not have the layout
	cut   bool  // it ends without a line feed
}

// A chainBreak is a place where the hash chain breaks although the numbers are consecutive.
type chainBreak struct{ before, since Place }

// A headResult is the result for the expected lines with one number.
type headResult struct {
	met   bool // a line with this number exists
	at    Place
	found []Hash // their hashes that were found at this number
}

func (v *verifier) addFinding(f Fault, at, to Place, lines int64, format string, args ...any) int {
	if len(v.report.Findings) == maxFindings {
		v.report.More++
		return -1
	}
	v.report.Findings = append(v.report.Findings, Finding{f, at, to, lines, fmt.Sprintf(format, args...)})
	return len(v.report.Findings) - 1
}

// readLine processes one line.
func (v *verifier) readLine(text []byte) {
	l, err := ParseLine(text)
	if v.check.Log != "" && (err != nil || l.Log != v.check.Log) {
		v.report.OtherLines++
		return
	}
	if err == nil {
		v.at.Seq, v.at.RequestID = l.Seq, requestID(l)
	}
	if err != nil || !l.Sound() {
		v.readInvalid(text, l, err == nil)
		return
	}
	if v.report.Log == "" {
		v.report.Log = l.Log
	}
	if l.Log != v.report.Log {
		v.readForeign(l)
		return
	}
	v.foreignAt = -1
	v.report.Lines++
	if n, ok := v.heads[l.Seq]; ok {
		if !n.met {
			n.met, n.at = true, v.at
		}
		if slices.Contains(v.expected, l.Head()) {
			n.found = append(n.found, l.Hash)
		}
		v.heads[l.Seq] = n
	}
	switch {
	case !v.begun:
		v.readFirst(l)
	case l.Seq > v.tip.Seq:
		v.readNext(l)
	default:
		v.readOld(l)
		return
	}
	v.tip = tip{Place: v.at, hash: l.Hash, real: l.Hash}
	v.remember(l)
	v.report.Last = l.Head()
	v.report.Closed = false
	if v.since.Line == 0 {
		v.since = v.at
	}
	v.report.Unsigned++
	v.content(l)
}

// readInvalid processes text that is not a valid line.
func (v *verifier) readInvalid(text []byte, l Line, layout bool) {
	if v.invalid.lines == 0 {
		v.invalid.at = v.at
	}
	v.invalid.add(text)
	v.invalid.cut = !v.ended
	v.invalid.last = tip{Place: v.at, wild: true}
	if layout {
		v.invalid.whole++
		v.invalid.last = tip{Place: v.at, hash: l.Hash, real: sha256.Sum256(l.payload)}
	}
}

// readForeign processes a line of another audit log.
func (v *verifier) readForeign(l Line) {
	v.judgeInvalid(0)
	if v.foreignAt >= 0 {
		f := &v.report.Findings[v.foreignAt]
		f.To, f.Lines = v.at, f.Lines+1
	} else {
		v.foreignAt = v.addFinding(Spliced, v.at, v.at, 1, "a line of another audit log, %s", l.Log)
	}
	content, _ := l.content(lenient)
	if h, ok := content.(Header); ok && v.foreignAt >= 0 {
		v.report.Findings[v.foreignAt].Detail = fmt.Sprintf(
			"a line of another audit log, %s, of the role %q in the cluster %q",
			l.Log,
			hexPrefix(h.Role),
			hexPrefix(h.Cluster),
		)
	}
}

func hexPrefix(s string) string { return s[:min(len(s), 64)] }

// readFirst processes the first line.
func (v *verifier) readFirst(l Line) {
	v.begun = true
	v.report.First = l.Head()
	if l.Kind == KindHeader {
		return // earlier text waits for the line that accounts for it
	}
	if v.invalid.lines == 0 {
		v.addFinding(NoHeader, v.at, v.at, 1, "the audit log does not begin with a header, so its cluster and role are unknown")
	}
	v.judgeInvalid(uint64(v.invalid.lines))
}

// readNext processes a line with a higher number than the tip.
func (v *verifier) readNext(l Line) {
	missing := l.Seq - v.tip.Seq - 1
	odd := uint64(v.invalid.lines)
	from := v.tip
	switch {
	case odd > 0 && missing == 0 && from.leadsTo(l.Prev):
		// No line is missing. This line or the next one may account for the text.
		if l.Kind != KindHeader && l.Kind != KindKey && l.Kind != KindTorn {
			v.judgeInvalid(0)
		}
		return
	case odd > 0:
		if odd == missing {
			from = v.invalid.last
		} else {
			from.wild = true
		}
		v.judgeInvalid(missing)
		if missing = missing - min(odd, missing); missing == 0 && from.leadsTo(l.Prev) {
			return
		}
	}
	switch {
	case missing > 0:
		at := v.addFinding(Cut, v.at, v.at, int64(missing), "lines are missing before this one: %s", numbers(l.Seq-missing, l.Seq-1))
		v.holes = append(v.holes, gap{from: l.Seq - missing, to: l.Seq - 1, finding: at})
	case from.leadsTo(l.Prev), v.fork.Seq == v.tip.Seq && v.fork.leadsTo(l.Prev):
	default:
		v.brokenAt = v.addFinding(Spliced, v.at, v.at, 1, "does not follow the previous line, %s: one of the two was changed", v.tip.Place)
		v.broken = chainBreak{before: v.tip.Place, since: v.since}
	}
}

func numbers(from, to uint64) string {
	if from == to {
		return fmt.Sprintf("number %d", from)
	}
	return fmt.Sprintf("numbers %d to %d", from, to)
}

// judgeInvalid stops waiting for a line that accounts for the pending text and reports the text. missing
// is the number of sequence numbers that are missing at that place.
func (v *verifier) judgeInvalid(missing uint64) { v.judgeInvalidAt(missing, false) }

func (v *verifier) judgeInvalidAt(missing uint64, end bool) {
	o := &v.invalid
	if o.lines == 0 {
		return
	}
	defer func() { v.invalid = pending{} }()
	at := o.at
	if missing > 0 && at.Seq == 0 && v.tip.Line > 0 {
		at.Seq = v.tip.Seq + 1
	}
	f, what := Unreadable, "text that is not a line of an audit log"
	if o.whole > 0 {
		f, what = Edited, "the text does not match its hash"
	}
	if missing == 0 && v.tip.Line > 0 && !end {
		what += ", at a place where no line is missing"
	} else if f == Unreadable && !end {
		what += ", in the place of a line"
	}
	v.addFinding(f, at, o.last.Place, int64(o.lines), "%s", what)
}

// readOld processes a line whose number is not above the tip.
func (v *verifier) readOld(l Line) {
	v.judgeInvalid(0)
	if i := slices.IndexFunc(v.holes, func(h gap) bool { return h.from <= l.Seq && l.Seq <= h.to }); i >= 0 {
		if s, ok := v.findAccepted(l.Seq); !ok {
			before, okBefore := v.findAccepted(l.Seq - 1)
			after, okAfter := v.findAccepted(l.Seq + 1)
			if okBefore && before.hash != hashPrefix(l.Prev) || okAfter && after.prev != hashPrefix(l.Hash) {
				v.addFinding(Spliced, v.at, v.at, 1, "does not fit between lines %d and %d", l.Seq-1, l.Seq+1)
				return
			}
			v.holes[i].filled++
			v.remember(l)
			return
		} else if s.hash == hashPrefix(l.Hash) {
			v.isRepeated(Repeated, "a line with this number was already read")
			return
		}
	}
	s, ok := v.findAccepted(l.Seq)
	switch {
	case !ok && l.Seq < v.report.First.Seq:
		v.isRepeated(Reordered, "its place is before the first line")
	case ok && s.hash == hashPrefix(l.Hash):
		v.isRepeated(Repeated, "a line with this number was already read")
	default:
		v.isRepeated(Forked, "another line has the same number")
		v.fork = tip{Place: v.at, hash: l.Hash, real: l.Hash}
	}
}

// isRepeated adds the current line to the finding of the previous line, or adds a new finding.
func (v *verifier) isRepeated(f Fault, detail string) {
	if n := len(v.report.Findings); n > 0 {
		last := &v.report.Findings[n-1]
		if last.Fault == f && last.To.File == v.at.File && last.To.Line == v.at.Line-1 {
			last.To, last.Lines = v.at, last.Lines+1
			return
		}
	}
	v.addFinding(f, v.at, v.at, 1, "%s", detail)
}

func (v *verifier) remember(l Line) {
	if v.index != nil {
		v.index[l.Seq] = len(v.accepted)
	}
	v.accepted = append(v.accepted, acceptedLine{l.Seq, hashPrefix(l.Hash), hashPrefix(l.Prev)})
}

func (v *verifier) findAccepted(seq uint64) (acceptedLine, bool) {
	if v.index == nil {
		v.index = make(map[uint64]int, len(v.accepted))
		for i, s := range v.accepted {
			v.index[s.seq] = i
		}
	}
	i, ok := v.index[seq]
	if !ok {
		return acceptedLine{}, false
	}
	return v.accepted[i], true
}

// content processes the content of a line that is in order.
func (v *verifier) content(l Line) {
	clean := v.clean
	v.clean = clean && l.Kind == KindKey
	if l.Kind == KindEntry { // not decoded, because that would take most of the time
		v.report.Entries++
		return
	}
	content, err := l.content(lenient)
	if err != nil {
		v.addFinding(Unreadable, v.at, v.at, 1, "the fields are not valid for a line of this kind")
	}
	switch c := content.(type) {
	case Header:
		v.header(l, c, clean)
	case Checkpoint:
		v.report.Checkpoints++
		v.report.Closed, v.clean = c.End == EndOfRun, c.End != ""
		v.signature(l, c.KeyID)
	case KeyChange:
		if v.signature(l, c.By) {
			delete(v.trusted, c.By)
			v.retired[c.By] = true
			v.trust(c.Key)
		}
	case Gap:
		v.report.Gaps++
		v.report.Lost += max(0, c.Lost)
	case Torn:
		v.torn(c)
	}
}
