package audit

import (
	"fmt"
	"slices"
	"strings"
)

// expect checks that the audit log has the line h, which was kept elsewhere. It reports whether it has.
func (v *verifier) expect(h Head, kept string) bool {
	switch n := v.heads[h.Seq]; {
	case slices.Contains(n.found, h.Hash):
		return true
	case n.met:
		v.addFinding(Forked, n.at, n.at, 1, "not the line %v that was %s elsewhere: the audit log was rewritten", h, kept)
	case !v.begun || h.Seq > v.tip.Seq:
		v.addFinding(
			Truncated,
			v.tip.Place,
			v.tip.Place,
			int64(h.Seq-v.tip.Seq),
			"the end is missing: line %v was %s elsewhere, but the audit log ends with line %d",
			h,
			kept,
			v.tip.Seq,
		)
	case h.Seq < v.report.First.Seq:
		if !slices.Contains(v.report.Unchecked, h) {
			v.report.Unchecked = append(v.report.Unchecked, h)
		}
	}
	return false
}

// compareWitness compares the audit log with the statements of servers.
func (v *verifier) compareWitness(w *Witness) {
	r := &v.report
	r.Witnessed, r.Unwitnessed = new(Head), int64(r.Last.Seq)
	if w.ClusterID != "" && r.ClusterID != w.ClusterID {
		v.addFinding(Spliced, v.tip.Place, v.tip.Place, r.Lines, "the audit log is of the cluster %q, not of %q, whose servers stated: %s",
			hexPrefix(r.Cluster), hexPrefix(w.Cluster), describeStatements(w.Statements))
		return
	}
	var lines []Head // that this log must have
	mentioned := false
	var others []SignedHead // of this role
	for _, s := range w.Statements {
		for _, h := range [...]LogHead{s.Last, s.Prev, s.RolledBack} {
			if !h.IsZero() && h.Log == r.Log && !slices.Contains(lines, h.Head) {
				lines = append(lines, h.Head)
			}
		}
		mentioned = mentioned || s.Last.Log == r.Prev.Log && !r.Prev.contradicts(s.Last)
		if s.Role == r.Role {
			others = append(others, s)
		}
	}
	for _, h := range lines {
		if v.expect(h, "witnessed") && h.Seq > r.Witnessed.Seq {
			*r.Witnessed, r.Unwitnessed = h, int64(r.Last.Seq-h.Seq)
		}
	}
	if len(lines) == 0 && !mentioned && len(others) > 0 {
		v.addFinding(
			Unwitnessed,
			v.tip.Place,
			v.tip.Place,
			r.Lines,
			"no server has witnessed this audit log; those of the role %q that they have witnessed: %s",
			hexPrefix(r.Role),
			describeStatements(others),
		)
	}
}

// describeStatements returns the stated lines, for people.
func describeStatements(all []SignedHead) string {
	const most = 8
	var out []string
	for _, s := range all[:min(len(all), most)] {
		out = append(out, s.Last.String())
	}
	if len(all) > most {
		out = append(out, fmt.Sprintf("and %d more", len(all)-most))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}
