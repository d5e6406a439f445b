package audit

import (
	"fmt"
	"time"
)

// A Report is the result of Verify. Its times and counts cover the valid lines, whatever Findings
// contains.
type Report struct {
	Log       string `json:"log"`
	Cluster   string `json:"cluster"`
	ClusterID string `json:"clusterId,omitempty"`
	Role      string `json:"role"`

	Prev LogHead `json:"prev,omitzero"` // the last known line of the log that the process wrote before

	First       Head      `json:"first"` // a Seq above 1 means that older files were not given
	Last        Head      `json:"last"`
	From        time.Time `json:"from"` // of the first header
	Lines       int64     `json:"lines"`
	Entries     int64     `json:"entries"`
	Checkpoints int64     `json:"checkpoints"`
	Runs        int64     `json:"runs"`       // number of processes that wrote the log
	Unclean     int64     `json:"unclean"`    // runs that did not end normally
	Gaps        int64     `json:"gaps"`       // Gap lines
	Lost        int64     `json:"lost"`       // total number of lost entries
	Torn        int64     `json:"torn"`       // Torn lines
	OtherLines  int64     `json:"otherLines"` // lines skipped because of Check.Log

	Keys      []PublicKey `json:"keys"`      // keys that signed the log, in order
	Pinned    bool        `json:"pinned"`    // the keys were given in Check, not trusted on first use
	Signed    Head        `json:"signed"`    // the last line that a signature covers
	Unsigned  int64       `json:"unsigned"`  // lines after Signed: a user with access to the disk can change them undetected
	Closed    bool        `json:"closed"`    // the last process ended normally
	Unchecked []Head      `json:"unchecked"` // heads of Check.Heads and Check.Witness from before the first line

	Witnessed   *Head `json:"witnessed,omitempty"`   // with Check.Witness: the last line that a server has witnessed
	Unwitnessed int64 `json:"unwitnessed,omitempty"` // with Check.Witness: lines after it, which an older copy of the file would lack unnoticed

	Findings []Finding `json:"findings"`
	More     int64     `json:"more,omitempty"` // number of findings that are not listed
}

// OK reports whether the checked lines are unchanged. Gaps, restarts and unsigned lines are not
// findings; the reader must judge them.
func (r Report) OK() bool { return len(r.Findings) == 0 && r.Lines > 0 }

// A Fault is a kind of error in an audit log.
type Fault string

// The kinds of errors.
const (
	NoHeader     Fault = "noHeader"     // the log does not begin with a header
	Edited       Fault = "edited"       // the hash of a line does not match its content
	Unreadable   Fault = "unreadable"   // invalid text that no Torn line accounts for
	Cut          Fault = "cut"          // lines are missing
	Truncated    Fault = "truncated"    // the end is missing
	Reordered    Fault = "reordered"    // lines are out of order
	Repeated     Fault = "repeated"     // a line occurs again
	Forked       Fault = "forked"       // two lines have the same number
	Spliced      Fault = "spliced"      // a line does not follow the previous line, or belongs to another audit log
	UnknownKey   Fault = "unknownKey"   // signed by an unknown or replaced key
	Unwitnessed  Fault = "unwitnessed"  // no server has witnessed the log, but they have witnessed others in its place
	BadSignature Fault = "badSignature" // a signature does not match the lines before it
)

// A Place is the position of a line in a file.
type Place struct {
	File      string `json:"file"`
	Line      int    `json:"line"`                // line number, starting at 1
	Seq       uint64 `json:"seq,omitempty"`       // of the line; 0 if unknown
	RequestID string `json:"requestId,omitempty"` // of an entry
}

// String returns "FILE:LINE".
func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// A Finding is one error: where it starts, and where it ends or was detected.
type Finding struct {
	Fault  Fault  `json:"fault"`
	At     Place  `json:"at"`
	To     Place  `json:"to"`
	Lines  int64  `json:"lines"` // number of affected lines, including missing ones
	Detail string `json:"detail"`
}

// String returns a sentence about f. It contains no character that moves a terminal's cursor.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s: %s", f.At, f.Fault, f.Detail)
}
