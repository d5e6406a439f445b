package audit

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

func (v *verifier) torn(t Torn) {
	v.report.Torn++
	switch {
	case v.invalid.is(t):
		v.invalid = pending{}
	case v.invalid.lines > 0:
		v.judgeInvalid(0)
	case v.check.Log == "": // in that mode, invalid text is skipped
		v.addFinding(Cut, v.at, v.at, 1, "the %d bytes that this line describes are missing", t.Bytes)
	}
}

// header processes a header. clean means that the lines before it ended normally.
func (v *verifier) header(l Line, h Header, clean bool) {
	r := &v.report
	if r.Cluster == "" {
		r.Cluster, r.ClusterID, r.Role, r.From, r.Prev = h.Cluster, h.ClusterID, h.Role, h.Time, h.Prev
	} else if h.Cluster != r.Cluster || h.Role != r.Role {
		v.addFinding(Spliced, v.at, v.at, 1, "the header is of the role %q in the cluster %q", hexPrefix(h.Role), hexPrefix(h.Cluster))
	}
	if h.Why == Started || h.Why == Restarted {
		r.Runs++
		if h.Why == Restarted && r.Lines > 1 && !clean {
			r.Unclean++
		}
	}
	id := h.Key.ID()
	_, known := v.trusted[id]
	switch {
	case known:
		v.trust(h.Key)
	case v.retired[id]:
		v.addFinding(UnknownKey, v.at, v.at, 1, "the key %s was already replaced", id)
		v.untrusted[id] = h.Key
	case !r.Pinned && len(r.Keys) == 0:
		v.trust(h.Key)
	default:
		v.addFinding(UnknownKey, v.at, v.at, 1, "the key %s is unknown", h.Key)
		v.untrusted[id] = h.Key
	}
	v.signature(l, id)
}

func (v *verifier) trust(k PublicKey) {
	v.trusted[k.ID()] = k
	if !slices.Contains(v.report.Keys, k) {
		v.report.Keys = append(v.report.Keys, k)
	}
}

// signature verifies the signature of a line. It returns true for a valid signature by a trusted
// key; such a signature covers every line before it.
func (v *verifier) signature(l Line, id string) bool {
	key, known := v.trusted[id]
	doubted, named := v.untrusted[id]
	switch {
	case known:
	case named: // already reported
		key = doubted
	case v.retired[id]:
		v.addFinding(UnknownKey, v.at, v.at, 1, "signed by the key %.16s, which was already replaced", id)
		return false
	default:
		v.addFinding(UnknownKey, v.at, v.at, 1, "signed by the unknown key %q", id[:min(len(id), 16)])
		return false
	}
	text, sig, ok := l.signature()
	if !ok || !key.verify(text, sig) {
		if v.badAt >= 0 {
			f := &v.report.Findings[v.badAt]
			f.To, f.Lines = v.at, v.report.Unsigned
		} else {
			v.badAt = v.addFinding(BadSignature, v.since, v.at, v.report.Unsigned, "the lines from here to %s do not match the signature", v.at)
		}
		return false
	}
	if !known {
		return false
	}
	v.badAt = -1
	if v.brokenAt >= 0 && v.broken.since.Line > 0 {
		// The signature covers the lines after the break, so the line before the break is wrong.
		f := &v.report.Findings[v.brokenAt]
		f.At, f.To = v.broken.before, f.At
		f.Detail = fmt.Sprintf(
			"not the line that the next line follows: this line, and perhaps earlier lines back to %s, were replaced",
			v.broken.since,
		)
	}
	v.brokenAt = -1
	v.since, v.report.Unsigned = Place{}, 0
	v.report.Signed = l.Head()
	return true
}

// finish reports the findings that are known only at the end.
func (v *verifier) finish() {
	r := &v.report
	cut := v.invalid.cut && v.invalid.lines > 0
	if cut && v.invalid.lines == 1 {
		v.addFinding(Truncated, v.invalid.at, v.invalid.at, 1, "the audit log ends in the middle of a line")
	} else if v.invalid.lines > 0 {
		v.judgeInvalidAt(0, true)
		if cut {
			v.addFinding(Truncated, v.at, v.at, 1, "the audit log ends in the middle of a line")
		}
	} else if !v.ended && v.check.Log == "" {
		v.addFinding(Truncated, v.at, v.at, 1, "the last line has no line feed")
	}
	v.invalid = pending{}
	for _, h := range v.holes {
		if h.finding < 0 {
			continue
		}
		f := &r.Findings[h.finding]
		switch size := int64(h.to - h.from + 1); {
		case h.filled == size:
			f.Fault, f.Detail = Reordered, fmt.Sprintf("this line is too early: %s come after it", numbers(h.from, h.to))
		case h.filled > 0:
			f.Lines = size - h.filled
			f.Detail = fmt.Sprintf("lines are missing before this one: some of %s are missing, others come after it", numbers(h.from, h.to))
		}
	}
	for _, h := range v.check.Heads {
		v.expect(h, "noted")
	}
	if v.check.Witness != nil {
		v.compareWitness(v.check.Witness)
	}
}

// requestID returns the audit ID of an entry without decoding the whole line. The ID is the second
// field.
func requestID(l Line) string {
	if l.Kind != KindEntry {
		return ""
	}
	_, rest, ok := bytes.Cut(l.body, []byte(`"requestId":"`))
	id, _, end := bytes.Cut(rest[:min(len(rest), 64)], []byte{'"'})
	if !ok || !end || bytes.ContainsRune(id, '\\') {
		return ""
	}
	return strings.ToValidUTF8(string(id), "�")
}
