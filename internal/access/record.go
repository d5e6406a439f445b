package access

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// RecordedStreams returns the streams through the access proxy that a rule can require to be recorded, as rules and sign-ins name them.
func RecordedStreams() []string { return []string{"exec", "attach", "portForward"} }

// MergeRecord returns the streams of both lists, each once, in the order of RecordedStreams.
func MergeRecord(a, b []string) (merged []string) {
	for _, s := range RecordedStreams() {
		if slices.Contains(a, s) || slices.Contains(b, s) {
			merged = append(merged, s)
		}
	}
	return merged
}

// decodeRecord decodes the field record of a rule, whose first token is value.
func decodeRecord(value json.Token, d *json.Decoder) ([]string, error) {
	names, err := decodeList(value, d)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("is empty; omit it to record nothing")
	}
	for i, name := range names {
		switch {
		case !slices.Contains(RecordedStreams(), name):
			return nil, fmt.Errorf("%.40q is not exec, attach or portForward", name)
		case slices.Contains(names[:i], name):
			return nil, fmt.Errorf("%q is listed twice", name)
		}
	}
	return MergeRecord(names, nil), err
}

// Record returns the streams that the chosen rule requires to be recorded.
func (p Permit) Record() []string { return slices.Clone(p.record) }

// RecordFor returns the streams that the rule which covers binds requires to be recorded; see [Permit.Covering]. If several rules are
// equal, it returns those of all. It returns none if no rule covers binds.
func (p Permit) RecordFor(binds Binds, t *Token) (record []string) {
	covering := p.coveringRules(binds, t)
	if len(covering) == 0 {
		return nil
	}
	best := slices.MaxFunc(covering, compareCoverage)
	for _, g := range covering {
		if compareCoverage(g, best) == 0 {
			record = MergeRecord(record, g.Record)
		}
	}
	return record
}

// compareCoverage orders rules that cover the same roles: the greatest is the one that counts.
func compareCoverage(a, b Grant) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Period, b.Period))
}
