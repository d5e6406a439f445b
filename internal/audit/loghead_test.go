package audit_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/audit"
)

// signed returns the statement of l after a signature.
func signed(t testing.TB, l *audit.Log) audit.SignedHead {
	t.Helper()
	if err := l.Sign(t.Context()); err != nil {
		t.Fatal(err)
	}
	h, ok := l.Signed()
	if !ok {
		t.Fatal("the log has no signed line on disk")
	}
	return h
}

// save replaces the file at path.
func save(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// AU-07. A writer that opens an older copy of its log, or a log that was rewritten since, learns that from an earlier statement. A log that
// was continued, rotated or started again contradicts none.
func TestAU07_CheckAgainstAnEarlierStatement(t *testing.T) {
	var none audit.LogHead
	begin := func(t *testing.T) (c audit.Config, old []byte, earlier audit.SignedHead) {
		c = config(t)
		l := open(t, c)
		write(t, l, 3)
		closeLog(t, l)
		old = read(t, c.Path)
		l = open(t, c)
		write(t, l, 5)
		earlier = signed(t, l)
		closeLog(t, l)
		return c, old, earlier
	}
	check := func(t *testing.T, l *audit.Log, earlier audit.SignedHead, want audit.LogHead) {
		t.Helper()
		now := signed(t, l)
		got, err := l.Check(earlier)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("with the statement %v, the log at %v lacks %q, want %q", earlier, now, got, want)
		}
	}
	t.Run("continued", func(t *testing.T) {
		c, _, earlier := begin(t)
		l := open(t, c)
		defer closeLog(t, l)
		check(t, l, earlier, none)
		write(t, l, 1)
		check(t, l, earlier, none)
	})
	t.Run("rotated", func(t *testing.T) {
		c, _, earlier := begin(t)
		c.MaxSize, c.Keep = 1, 1 // a new file for each batch; only one old file remains
		l := open(t, c)
		defer closeLog(t, l)
		for range 4 {
			write(t, l, 1)
		}
		check(t, l, earlier, none)
	})
	t.Run("an older copy", func(t *testing.T) {
		c, old, earlier := begin(t)
		save(t, c.Path, old)
		l := open(t, c)
		defer closeLog(t, l)
		check(t, l, earlier, earlier.Last)
	})
	t.Run("an older copy that has grown past the statement", func(t *testing.T) {
		c, old, earlier := begin(t)
		save(t, c.Path, old)
		l := open(t, c)
		defer closeLog(t, l)
		write(t, l, 20)
		check(t, l, earlier, earlier.Last)
	})
	t.Run("another log of the same process", func(t *testing.T) {
		c, _, earlier := begin(t)
		if err := os.Remove(c.Path); err != nil {
			t.Fatal(err)
		}
		c.Prev = earlier.Last
		l := open(t, c)
		write(t, l, 1)
		next := signed(t, l)
		closeLog(t, l)
		if next.Prev != earlier.Last || next.Last.Log == earlier.Last.Log {
			t.Errorf("the new log %v names the predecessor %v, want %v", next.Last, next.Prev, earlier.Last)
		}
		c.Prev = none
		l = open(t, c) // continues: the log keeps its predecessor
		defer closeLog(t, l)
		check(t, l, earlier, none)
		if got := signed(t, l).Prev; got != earlier.Last {
			t.Errorf("after a restart the predecessor is %v, want %v", got, earlier.Last)
		}
	})
	t.Run("another log whose predecessor was cut first", func(t *testing.T) {
		c, _, earlier := begin(t)
		if err := os.Remove(c.Path); err != nil {
			t.Fatal(err)
		}
		c.Prev = audit.LogHead{Log: earlier.Last.Log, Head: audit.Head{Seq: 1}}
		l := open(t, c)
		defer closeLog(t, l)
		check(t, l, earlier, earlier.Last)
	})
	t.Run("the predecessor is put back", func(t *testing.T) {
		c, _, earlier := begin(t)
		kept := read(t, c.Path)
		if err := os.Remove(c.Path); err != nil {
			t.Fatal(err)
		}
		c.Prev = earlier.Last
		l := open(t, c)
		next := signed(t, l)
		closeLog(t, l)
		save(t, c.Path, kept)
		l = open(t, c)
		defer closeLog(t, l)
		check(t, l, next, next.Last)
	})
	t.Run("a statement about another log", func(t *testing.T) {
		c, _, earlier := begin(t)
		l := open(t, c)
		defer closeLog(t, l)
		other := audit.SignedHead{Role: "access", Last: audit.LogHead{Log: strings.Repeat("A", 16), Head: audit.Head{Seq: 1 << 40}}}
		check(t, l, other, none)
		earlier.Role = "operator"
		earlier.Last.Head.Seq = 1 << 40
		check(t, l, earlier, none)
	})
}

// A statement is about lines on disk. A log on standard output makes none.
func TestSigned(t *testing.T) {
	c := config(t)
	l := open(t, c)
	write(t, l, 1)
	h := signed(t, l)
	if h.Role != "access" || h.Last.Head != l.Head() {
		t.Errorf("signed %+v, want the last line %v", h, l.Head())
	}
	closeLog(t, l)
	if end, _ := l.Signed(); end.Last.Head != l.Head() {
		t.Errorf("after the end: signed %+v, want the last line %v", end, l.Head())
	}
	c.Path, c.Writer = "", new(bytes.Buffer)
	l = open(t, c)
	defer closeLog(t, l)
	if err := l.Sign(t.Context()); err != nil {
		t.Error(err)
	}
	if h, ok := l.Signed(); ok {
		t.Errorf("a log on a stream states %+v", h)
	}
}

func FuzzParseLogHead(f *testing.F) {
	for _, s := range []string{"", "ABCDEFGHIJKLMNOP:1:" + strings.Repeat("0", 64), "ABCDEFGHIJKLMNOP:9007199254740992:" + strings.Repeat("0", 64), "ABCDEFGHIJKLMNOP", ":::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := audit.ParseLogHead(s)
		if err != nil {
			return
		}
		again, err := audit.ParseLogHead(h.String())
		if err != nil || again != h {
			t.Errorf("%q is %v, and its text is %v, %v", s, h, again, err)
		}
		b, err := json.Marshal(audit.SignedHead{Role: "access", Last: h, Prev: h})
		if err != nil {
			t.Fatal(err)
		}
		var back audit.SignedHead
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, back.Prev); diff != "" {
			t.Errorf("as JSON (-want +got):\n%s", diff)
		}
		if h.IsZero() != (s == "") {
			t.Errorf("%q is zero: %v", s, h.IsZero())
		}
	})
}

// TestAU07_VerifyWithAWitness: with the statements that servers have witnessed, an older copy, a rewritten log, a log of another cluster and
// an unknown log fail, and the report names the last witnessed line. Statements about other logs accuse nobody.
func TestAU07_VerifyWithAWitness(t *testing.T) {
	c := config(t)
	l := open(t, c)
	write(t, l, 3)
	closeLog(t, l)
	old := read(t, c.Path)
	l = open(t, c)
	write(t, l, 5)
	first := signed(t, l)
	write(t, l, 4)
	closeLog(t, l)
	whole := read(t, c.Path)
	last, _ := l.Signed()

	save(t, c.Path, old)
	l = open(t, c)
	write(t, l, 30)
	closeLog(t, l)
	grown := read(t, c.Path)

	if err := os.Remove(c.Path); err != nil {
		t.Fatal(err)
	}
	c.Prev = last.Last
	l = open(t, c)
	write(t, l, 1)
	closeLog(t, l)
	next := read(t, c.Path)
	nextLast, _ := l.Signed()

	foreign := config(t)
	foreign.Cluster, foreign.ClusterID = "prod-us", "c2"
	l = open(t, foreign)
	write(t, l, 50)
	closeLog(t, l)
	other := read(t, foreign.Path)

	stranger := audit.SignedHead{Role: "access", Last: audit.LogHead{Log: strings.Repeat("B", 16), Head: audit.Head{Seq: 1 << 40}}}
	operator := stranger
	operator.Role = "operator"
	lost := nextLast
	lost.RolledBack = last.Last
	n := int64(bytes.Count(whole, []byte("\n")))
	for _, tt := range []struct {
		why        string
		file       []byte
		statements []audit.SignedHead
		fault      audit.Fault // "": intact
		uncovered  int64
	}{
		{"up to an earlier line", whole, []audit.SignedHead{first}, "", n - int64(first.Last.Head.Seq)},
		{"up to the last line", whole, []audit.SignedHead{last, stranger, operator}, "", 0},
		{"both", whole, []audit.SignedHead{last, first}, "", 0},
		{"nothing about this role", whole, []audit.SignedHead{operator}, "", n},
		{"an older copy", old, []audit.SignedHead{first, stranger}, audit.Truncated, int64(bytes.Count(old, []byte("\n")))},
		{"an older copy that grew", grown, []audit.SignedHead{first}, audit.Forked, int64(bytes.Count(grown, []byte("\n")))},
		{"a new log that names its predecessor", next, []audit.SignedHead{last}, "", int64(bytes.Count(next, []byte("\n")))},
		{"the predecessor of the current log", whole, []audit.SignedHead{nextLast}, "", 0},
		{"the predecessor, cut", old, []audit.SignedHead{nextLast}, audit.Truncated, int64(bytes.Count(old, []byte("\n")))},
		{"the predecessor, which the server says was rolled back", old, []audit.SignedHead{lost}, audit.Truncated, int64(bytes.Count(old, []byte("\n")))},
		{"an unknown log", whole, []audit.SignedHead{stranger}, audit.Unwitnessed, n},
		{"a log of another cluster", other, []audit.SignedHead{first}, audit.Spliced, int64(bytes.Count(other, []byte("\n")))},
	} {
		r, err := audit.Verify(audit.Check{Witness: &audit.Witness{Cluster: "prod-eu", ClusterID: "c1", Statements: tt.statements}}, audit.Source{Name: "audit.jsonl", Reader: bytes.NewReader(tt.file)})
		if err != nil {
			t.Errorf("%s: %v", tt.why, err)
			continue
		}
		var got []audit.Fault
		for _, f := range r.Findings {
			got = append(got, f.Fault)
			if named := tt.statements[0].Last.String(); tt.fault != audit.Forked && !strings.Contains(f.Detail, named[17:]) && !strings.Contains(f.Detail, last.Last.Head.String()) {
				t.Errorf("%s: the finding does not name the witnessed line: %v", tt.why, f)
			}
		}
		var want []audit.Fault
		if tt.fault != "" {
			want = append(want, tt.fault)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s%v", tt.why, diff, r.Findings)
		}
		if r.Unwitnessed != tt.uncovered {
			t.Errorf("%s: %d lines without a witness, want %d", tt.why, r.Unwitnessed, tt.uncovered)
		}
	}
	r, err := audit.Verify(audit.Check{}, audit.Source{Name: "audit.jsonl", Reader: bytes.NewReader(old)})
	if err != nil || !r.OK() {
		t.Errorf("without a witness an older copy is intact, and the report says %v, %v", r.Findings, err)
	}
}
