package audit_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/audit"
)

// A sample is an audit log of 20 entries with a signature after every 8 lines:
//
//	1 header  2-9 R0000..R0007  10 checkpoint  11-18 R0008..R0015  19 checkpoint  20-23 R0016..R0019  24 checkpoint (close)
type sample struct {
	conf  audit.Config
	lines [][]byte
	head  audit.Head
}

func newSample(t testing.TB, cluster string) sample {
	t.Helper()
	s := sampleOf(t, cluster, 20, 8)
	if len(s.lines) != 24 {
		t.Fatalf("the sample has %d lines", len(s.lines))
	}
	return s
}

func sampleOf(t testing.TB, cluster string, entries, every int) sample {
	t.Helper()
	c := config(t)
	c.Cluster, c.CheckpointLines = cluster, every
	l := open(t, c)
	write(t, l, entries)
	closeLog(t, l)
	sound(t, c)
	return sample{conf: c, lines: lines(read(t, c.Path)), head: l.Head()}
}

// rehash changes the text of a line, its previous hash and its hash, as an attacker without the key
// can do. prev may be nil.
func rehash(line []byte, prev *audit.Hash, replace ...string) ([]byte, audit.Hash) {
	text, _, _ := bytes.Cut(line, []byte(`,"hash":"`))
	s := strings.NewReplacer(replace...).Replace(string(text))
	if prev != nil {
		i := strings.Index(s, `"prev":"`) + len(`"prev":"`)
		s = s[:i] + prev.String() + s[i+64:]
	}
	sum := audit.Hash(sha256.Sum256([]byte(s)))
	return []byte(s + `,"hash":"` + sum.String() + "\"}\n"), sum
}

// rewrite changes line i and recomputes the hashes of that line and n more.
func rewrite(ls [][]byte, i, n int, replace ...string) [][]byte {
	ls = slices.Clone(ls)
	var sum audit.Hash
	ls[i], sum = rehash(ls[i], nil, replace...)
	for j := i + 1; j < len(ls) && j <= i+n; j++ {
		ls[j], sum = rehash(ls[j], &sum)
	}
	return ls
}

func without(ls [][]byte, from, to int) [][]byte {
	return slices.Delete(slices.Clone(ls), from, to)
}

func with(ls [][]byte, at int, more ...[]byte) [][]byte {
	return slices.Insert(slices.Clone(ls), at, more...)
}

func joined(ls [][]byte) audit.Source {
	return audit.Source{Name: "audit.jsonl", Reader: bytes.NewReader(bytes.Join(ls, nil))}
}

// AU-05: Verify names each manipulation and the entry where it starts.
func TestAU05_EveryManipulationIsNamed(t *testing.T) {
	s, other := newSample(t, "prod-eu"), newSample(t, "prod-us")
	ls := s.lines
	alice, mallory := "alice@example.com", "mallory@example.com"
	for _, tt := range []struct {
		why       string
		lines     [][]byte
		fault     audit.Fault
		line      int    // first affected line
		seq       uint64 // sequence number of that line
		requestID string
		n         int64 // number of affected lines
		also      []audit.Fault
		noHead    bool // the verifier does not have the stored head
	}{
		{why: "an entry edited", lines: with(without(ls, 4, 5), 4, bytes.Replace(ls[4], []byte(alice), []byte(mallory), 1)),
			fault: audit.Edited, line: 5, seq: 5, requestID: "R0003", n: 1},
		{why: "two entries edited", lines: with(without(ls, 4, 6), 4, bytes.Replace(ls[4], []byte("done"), []byte("refused"), 1), bytes.Replace(ls[5], []byte("done"), []byte("failed"), 1)),
			fault: audit.Edited, line: 5, seq: 5, requestID: "R0003", n: 2},
		{why: "an entry changed to be unreadable", lines: with(without(ls, 4, 5), 4, []byte("{}\n")),
			fault: audit.Unreadable, line: 5, seq: 5, n: 1},
		{why: "an entry edited, with its hash", lines: rewrite(ls, 4, 0, alice, mallory),
			fault: audit.Spliced, line: 5, seq: 5, requestID: "R0003", n: 1},
		{why: "an entry edited, with the hashes of some lines after it", lines: rewrite(ls, 10, 2, alice, mallory),
			fault: audit.Spliced, line: 13, seq: 13, requestID: "R0010", n: 1},
		{why: "an entry edited, with all hashes to the end", lines: rewrite(ls, 12, 99, alice, mallory),
			fault: audit.BadSignature, line: 11, seq: 11, requestID: "R0008", n: 14, also: []audit.Fault{audit.Forked}},
		{why: "the same, with no head noted", lines: rewrite(ls, 12, 99, alice, mallory), noHead: true,
			fault: audit.BadSignature, line: 11, seq: 11, requestID: "R0008", n: 14},
		{why: "the header edited", lines: with(without(ls, 0, 1), 0, bytes.Replace(ls[0], []byte("prod-eu"), []byte("prod-us"), 1)),
			fault: audit.Edited, line: 1, seq: 1, n: 1},
		{why: "the header's key replaced, with its hash", lines: rewrite(ls, 0, 99, s.conf.Key.Public().String(), other.conf.Key.Public().String()),
			fault: audit.UnknownKey, line: 1, seq: 1, n: 1, also: []audit.Fault{audit.BadSignature, audit.Forked}},

		{why: "entries cut out", lines: without(ls, 4, 7), fault: audit.Cut, line: 5, seq: 8, requestID: "R0006", n: 3},
		{why: "a checkpoint cut out", lines: without(ls, 9, 10), fault: audit.Cut, line: 10, seq: 11, requestID: "R0008", n: 1},
		{why: "entries cut out, the rest renumbered", lines: func() [][]byte {
			out := without(ls, 4, 5)
			for i := 4; i < len(out); i++ {
				out = rewrite(out, i, 99, fmt.Sprintf(`"seq":%d,`, i+2), fmt.Sprintf(`"seq":%d,`, i+1))
			}
			_, sum := rehash(out[3], nil)
			for i := 4; i < len(out); i++ {
				out[i], sum = rehash(out[i], &sum)
			}
			return out
		}(), fault: audit.BadSignature, line: 2, seq: 2, requestID: "R0000", n: 22, also: []audit.Fault{audit.Truncated}},
		{why: "the beginning cut off", lines: ls[2:], fault: audit.NoHeader, line: 1, seq: 3, requestID: "R0001", n: 1},
		{why: "the end cut off", lines: ls[:20], fault: audit.Truncated, line: 20, seq: 20, requestID: "R0016", n: 4},
		{why: "the end cut off at a signature", lines: ls[:19], fault: audit.Truncated, line: 19, seq: 19, n: 5},
		{why: "the last line cut off", lines: ls[:23], fault: audit.Truncated, line: 23, seq: 23, requestID: "R0019", n: 1},
		{why: "everything cut off", lines: nil, fault: audit.Truncated, n: 24},
		{why: "the end cut in the middle of a line", lines: append(slices.Clone(ls[:20]), ls[20][:50]), noHead: true,
			fault: audit.Truncated, line: 21, n: 1},
		{why: "the last line feed cut off", lines: append(slices.Clone(ls[:23]), bytes.TrimSuffix(ls[23], []byte("\n"))),
			fault: audit.Truncated, line: 24, seq: 24, n: 1},

		{why: "two lines swapped", lines: with(without(ls, 4, 5), 5, ls[4]), fault: audit.Reordered, line: 5, seq: 6, requestID: "R0004", n: 1},
		{why: "a line moved down", lines: with(without(ls, 4, 5), 19, ls[4]), fault: audit.Reordered, line: 5, seq: 6, requestID: "R0004", n: 1},
		{why: "a line moved up", lines: with(without(ls, 19, 20), 4, ls[19]), fault: audit.Reordered, line: 5, seq: 20, requestID: "R0016", n: 15},
		{why: "a line moved before the header", lines: with(without(ls, 4, 5), 0, ls[4]), fault: audit.NoHeader, line: 1, seq: 5, requestID: "R0003", n: 1,
			also: []audit.Fault{audit.Reordered}},
		{why: "the last two swapped", lines: with(without(ls, 22, 23), 23, ls[22]), fault: audit.Reordered, line: 23, seq: 24, n: 1},
		{why: "blocks swapped", lines: slices.Concat(ls[:5], ls[10:15], ls[5:10], ls[15:]), fault: audit.Reordered, line: 6, seq: 11, requestID: "R0008", n: 5},
		{why: "a line moved, and one cut out", lines: with(without(ls, 4, 6), 10, ls[4]), fault: audit.Cut, line: 5, seq: 7, requestID: "R0005", n: 1},

		{why: "a line repeated", lines: with(ls, 5, ls[4]), fault: audit.Repeated, line: 6, seq: 5, requestID: "R0003", n: 1},
		{why: "a block repeated later", lines: with(ls, 20, ls[4:8]...), fault: audit.Repeated, line: 21, seq: 5, requestID: "R0003", n: 4},
		{why: "the header repeated", lines: with(ls, 20, ls[0]), fault: audit.Repeated, line: 21, seq: 1, n: 1},
		{why: "another line with the same number", lines: with(ls, 5, rewrite(ls, 4, 0, alice, mallory)[4]),
			fault: audit.Forked, line: 6, seq: 5, requestID: "R0003", n: 1},
		{why: "two writers' lines", lines: slices.Concat(ls[:20], rewrite(ls, 12, 99, alice, mallory)[12:20], ls[20:]),
			fault: audit.Forked, line: 21, seq: 13, requestID: "R0010", n: 8},

		{why: "lines of another cluster put in", lines: with(ls, 10, other.lines[4:8]...), fault: audit.Spliced, line: 11, seq: 5, requestID: "R0003", n: 4},
		{why: "lines of another cluster in their place", lines: slices.Concat(ls[:10], other.lines[10:14], ls[14:]), fault: audit.Spliced, line: 11, seq: 11, requestID: "R0008", n: 4,
			also: []audit.Fault{audit.Cut}},
		{why: "another cluster's end", lines: slices.Concat(ls[:10], other.lines[10:]), fault: audit.Spliced, line: 11, seq: 11, requestID: "R0008", n: 14,
			also: []audit.Fault{audit.Truncated}},
		{why: "another cluster's whole record", lines: other.lines, fault: audit.UnknownKey, line: 1, seq: 1, n: 1,
			also: []audit.Fault{audit.Forked}},
		{why: "another cluster's record after it", lines: slices.Concat(ls, other.lines), fault: audit.Spliced, line: 25, seq: 1, n: 24},
		{why: "lines of another cluster under this record's name", lines: func() [][]byte {
			id := func(l []byte) string { return string(l[bytes.Index(l, []byte(`"log":"`))+7:][:16]) }
			var in [][]byte
			for _, l := range other.lines[10:14] {
				changed, _ := rehash(l, nil, id(l), id(ls[0]))
				in = append(in, changed)
			}
			return slices.Concat(ls[:10], in, ls[14:])
		}(), fault: audit.Spliced, line: 11, seq: 11, requestID: "R0008", n: 1, also: slices.Repeat([]audit.Fault{audit.Spliced}, 4)},
		{why: "a forged line", lines: func() [][]byte {
			_, sum := rehash(ls[4], nil)
			made, _ := rehash(ls[5], &sum, alice, mallory)
			return with(ls, 5, made)
		}(), fault: audit.Forked, line: 7, seq: 6, n: 1, requestID: "R0004"},
		{why: "text put in", lines: with(ls, 10, []byte("hello\n"), []byte("world\n")), fault: audit.Unreadable, line: 11, n: 2},
		{why: "an empty line put in", lines: with(ls, 10, []byte("\n")), fault: audit.Unreadable, line: 11, n: 1},
		{why: "text before it", lines: with(ls, 0, []byte("hello\n")), fault: audit.Unreadable, line: 1, n: 1},
		{why: "text after it", lines: append(slices.Clone(ls), []byte("hello\n")), fault: audit.Unreadable, line: 25, n: 1},
		{why: "something else", lines: [][]byte{[]byte("hello\n")}, fault: audit.Unreadable, line: 1, n: 1, also: []audit.Fault{audit.Truncated}},
	} {
		check := pinned(s.conf)
		if !tt.noHead {
			check.Heads = []audit.Head{s.head}
		}
		r := verify(t, check, joined(tt.lines))
		if len(r.Findings) == 0 {
			t.Errorf("%s: not found", tt.why)
			continue
		}
		f := r.Findings[0]
		var also []audit.Fault
		for _, f := range r.Findings[1:] {
			also = append(also, f.Fault)
		}
		switch {
		case f.Fault != tt.fault:
			t.Errorf("%s: f.Fault = %q, want %q; %v", tt.why, f.Fault, tt.fault, r.Findings)
		case f.At.Line != tt.line:
			t.Errorf("%s: f.At.Line = %v, want %v; %v", tt.why, f.At.Line, tt.line, r.Findings)
		case f.At.Seq != tt.seq:
			t.Errorf("%s: f.At.Seq = %v, want %v; %v", tt.why, f.At.Seq, tt.seq, r.Findings)
		case f.At.RequestID != tt.requestID:
			t.Errorf("%s: f.At.RequestID = %q, want %q; %v", tt.why, f.At.RequestID, tt.requestID, r.Findings)
		case f.Lines != tt.n:
			t.Errorf("%s: f.Lines = %v, want %v; %v", tt.why, f.Lines, tt.n, r.Findings)
		case !slices.Equal(also, tt.also):
			t.Errorf("%s: also (-want +got):\n%s", tt.why, cmp.Diff(tt.also, also))
		}
		if r.OK() {
			t.Errorf("%s: it is OK", tt.why)
		}
	}
}

// AU-05: An audit log that an attacker rewrites with a different key is detected by the keys or by
// a stored head.
func TestAU05_RecreatedRecord(t *testing.T) {
	s := newSample(t, "prod-eu")
	forged := newSample(t, "prod-eu")
	if r := verify(t, audit.Check{}, joined(forged.lines)); !r.OK() || r.Pinned {
		t.Errorf("on trust: %+v", r)
	}
	r := verify(t, audit.Check{Heads: []audit.Head{s.head}}, joined(forged.lines))
	switch {
	case len(r.Findings) != 1:
		t.Errorf("by the head: len(r.Findings) = %v, want 1", len(r.Findings))
	case r.Findings[0].Fault != audit.Forked:
		t.Errorf("by the head: r.Findings[0].Fault = %q, want %q", r.Findings[0].Fault, audit.Forked)
	case r.Findings[0].At.Line != 24:
		t.Errorf("by the head: r.Findings[0].At.Line = %v, want 24", r.Findings[0].At.Line)
	}
	r = verify(t, pinned(s.conf), joined(forged.lines))
	if len(r.Findings) != 1 || r.Findings[0].Fault != audit.UnknownKey {
		t.Errorf("by the key: %v", r.Findings)
	}
}

// AU-05: The report counts the lines that no signature covers yet.
func TestAU05_TheUnsignedEndIsCounted(t *testing.T) {
	s := newSample(t, "prod-eu")
	r := verify(t, pinned(s.conf), joined(s.lines[:20]))
	switch {
	case !r.OK():
		t.Errorf("r.OK() is false; %+v", r)
	case r.Closed:
		t.Errorf("r.Closed is true; %+v", r)
	case r.Unsigned != 1:
		t.Errorf("r.Unsigned = %v, want 1", r.Unsigned)
	case r.Signed.Seq != 19:
		t.Errorf("r.Signed.Seq = %v, want 19", r.Signed.Seq)
	case r.Last.Seq != 20:
		t.Errorf("r.Last.Seq = %v, want 20", r.Last.Seq)
	}
	// A head from within the log is checked. Heads before the first line are listed as unchecked,
	// and missing ones are reported.
	l, err := audit.ParseLine(bytes.TrimSuffix(s.lines[10], []byte("\n")))
	if err != nil {
		t.Fatal(err)
	}
	check := pinned(s.conf)
	check.Heads = []audit.Head{l.Head()}
	if r := verify(t, check, joined(s.lines)); !r.OK() {
		t.Errorf("%v", r.Findings)
	}
	check.Heads = append(check.Heads, audit.Head{Seq: 11})
	switch r := verify(t, check, joined(s.lines)); {
	case len(r.Findings) != 1:
		t.Errorf("len(r.Findings) = %v, want 1", len(r.Findings))
	case r.Findings[0].Fault != audit.Forked:
		t.Errorf("r.Findings[0].Fault = %q, want %q", r.Findings[0].Fault, audit.Forked)
	case r.Findings[0].At.RequestID != "R0008":
		t.Errorf("r.Findings[0].At.RequestID = %q, want %q", r.Findings[0].At.RequestID, "R0008")
	}
}

// AU-05: Files are sorted, and a missing file is a cut.
func TestAU05_Files(t *testing.T) {
	c := config(t)
	c.MaxSize, c.Keep = 4000, -1
	l := open(t, c)
	write(t, l, 100)
	closeLog(t, l)
	all := files(t, c)
	contents := map[string][]byte{}
	for _, s := range all {
		contents[s.Name] = read(t, filepath.Join(filepath.Dir(c.Path), s.Name))
	}
	names := slices.Sorted(maps.Keys(contents))
	given := func(names ...string) (out []audit.Source) {
		for _, n := range names {
			out = append(out, audit.Source{Name: n, Reader: bytes.NewReader(contents[n])})
		}
		return out
	}
	slices.Reverse(names)
	r := verify(t, pinned(c), given(names...)...)
	if !r.OK() || r.Entries != 100 {
		t.Errorf("in any order: %+v", r)
	}
	switch r := verify(t, pinned(c), given(without2(names, 2)...)...); {
	case len(r.Findings) != 1:
		t.Errorf("without: len(r.Findings) = %v, want 1; %s", len(r.Findings), names[2])
	case r.Findings[0].Fault != audit.Cut:
		t.Errorf("without: r.Findings[0].Fault = %q, want %q; %s", r.Findings[0].Fault, audit.Cut, names[2])
	case r.Findings[0].At.Line != 1:
		t.Errorf("without: r.Findings[0].At.Line = %v, want 1; %s", r.Findings[0].At.Line, names[2])
	}
	// The oldest file may be missing, because rotation deletes it.
	oldest := names[len(names)-2] // the last one is the current file
	check := pinned(c)
	check.Heads = []audit.Head{{Seq: 1}}
	switch r := verify(t, check, given(without2(names, slices.Index(names, oldest))...)...); {
	case !r.OK():
		t.Errorf("without: r.OK() is false; oldest = %s, %+v", oldest, r)
	case r.First.Seq == 1:
		t.Errorf("without: r.First.Seq = %v; oldest = %s", r.First.Seq, oldest)
	case len(r.Unchecked) != 1:
		t.Errorf("without: len(r.Unchecked) = %v, want 1; oldest = %s", len(r.Unchecked), oldest)
	}
	if r := verify(t, pinned(c), given(append(names, oldest)...)...); len(r.Findings) != 1 || r.Findings[0].Fault != audit.Repeated {
		t.Errorf("%s twice: %v", oldest, r.Findings)
	}
	foreign := read(t, otherRecord(t))
	if r := verify(t, pinned(c), append(given(names...), audit.Source{Name: "other", Reader: bytes.NewReader(foreign)})...); len(r.Findings) == 0 {
		t.Error("another cluster's file is not found")
	}
}

func without2(names []string, i int) []string { return slices.Delete(slices.Clone(names), i, i+1) }

// AU-05, as a law: Verify detects each change, removal or insertion of one byte, and each deletion,
// repetition or swap of lines.
func TestAU05_AnyChangeIsFound(t *testing.T) {
	s := sampleOf(t, "prod-eu", 3, 2)
	check := pinned(s.conf)
	check.Heads = []audit.Head{s.head}
	whole := bytes.Join(s.lines, nil)
	found := func(b []byte) bool {
		return !verify(t, check, audit.Source{Name: "x", Reader: bytes.NewReader(b)}).OK()
	}
	if found(whole) {
		t.Fatal("something is found in a good record")
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range whole {
		b := slices.Clone(whole)
		if b[i] ^= byte(1 + r.IntN(255)); !found(b) {
			t.Errorf("seed %d: byte %d changed to %q: not found in %q", seed, i, b[i], b[max(0, i-20):min(len(b), i+20)])
		}
		if !found(slices.Delete(slices.Clone(whole), i, i+1)) {
			t.Errorf("byte %d taken out: not found", i)
		}
		if b := slices.Insert(slices.Clone(whole), i, byte(r.IntN(256))); !found(b) && !bytes.Equal(b, whole) {
			t.Errorf("seed %d: byte %d put in: not found", seed, i)
		}
	}
	if !found(append(slices.Clone(whole), '\n')) || !found(append(slices.Clone(whole), 'x')) {
		t.Error("a byte put at the end: not found")
	}
	for i := range s.lines {
		if !found(bytes.Join(without(s.lines, i, i+1), nil)) {
			t.Errorf("line %d deleted: not found", i+1)
		}
		for j := range s.lines {
			if !found(bytes.Join(with(s.lines, j, s.lines[i]), nil)) {
				t.Errorf("line %d repeated at %d: not found", i+1, j+1)
			}
			if i == j {
				continue
			}
			b := slices.Clone(s.lines)
			b[i], b[j] = b[j], b[i]
			if !found(bytes.Join(b, nil)) {
				t.Errorf("lines %d and %d swapped: not found", i+1, j+1)
			}
			if b = slices.Clone(s.lines); j > i {
				if !found(bytes.Join(slices.Delete(b, i, j), nil)) {
					t.Errorf("lines %d to %d deleted: not found", i+1, j)
				}
			}
		}
	}
}

var update = flag.Bool("update", false, "rewrite the audit log in testdata: only for a new version of the schema")

// golden returns the audit log in testdata, which has every kind of line. It also returns the first
// signing key and the head.
func golden(t testing.TB) (text []byte, key audit.PublicKey, head audit.Head) {
	t.Helper()
	path := filepath.Join("testdata", fmt.Sprintf("version%d.jsonl", audit.SchemaVersion))
	keys := [2]audit.Key{}
	for i := range keys {
		k, err := audit.NewKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i)}, ed25519.SeedSize)))
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = k
	}
	if *update {
		c := config(t)
		c.Key, c.CheckpointLines = keys[0], 4
		c.Now = func() time.Time { return day }
		l := open(t, c)
		write(t, l, 5)
		closeLog(t, l)
		f, err := os.OpenFile(c.Path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, `{"seq":9,"log":"TORN`)
		f.Close()
		c.Key, c.OldKey = keys[1], keys[0]
		l = open(t, c)
		write(t, l, 2)
		closeLog(t, l)
		if err := os.WriteFile(path, read(t, c.Path), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text = read(t, path)
	ls := lines(text)
	last, err := audit.ParseLine(bytes.TrimSuffix(ls[len(ls)-1], []byte("\n")))
	if err != nil {
		t.Fatal(err)
	}
	return text, keys[0].Public(), last.Head()
}

// An audit log of an older program can be verified as long as such logs exist.
func TestTheFormatStays(t *testing.T) {
	text, key, head := golden(t)
	r := verify(t, audit.Check{Keys: []audit.PublicKey{key}, Heads: []audit.Head{head}}, audit.Source{Name: "golden", Reader: bytes.NewReader(text)})
	switch {
	case !r.OK():
		t.Errorf("r.OK() is false; %+v", r)
	case r.Entries != 7:
		t.Errorf("r.Entries = %v, want 7", r.Entries)
	case r.Runs != 2:
		t.Errorf("r.Runs = %v, want 2", r.Runs)
	case r.Torn != 1:
		t.Errorf("r.Torn = %v, want 1", r.Torn)
	case len(r.Keys) != 2:
		t.Errorf("len(r.Keys) = %v, want 2", len(r.Keys))
	case !r.Closed:
		t.Errorf("r.Closed is false; %+v", r)
	case r.Unsigned != 0:
		t.Errorf("r.Unsigned = %v, want 0", r.Unsigned)
	}
	// The hash can be computed with common tools.
	first := lines(text)[0]
	body, hash, _ := bytes.Cut(first, []byte(`,"hash":"`))
	if got := fmt.Sprintf("%x\"}\n", sha256.Sum256(body)); got != string(hash) {
		t.Errorf("the hash of the first line is %s, not %s", got, hash)
	}
}

// FuzzVerify checks that Verify reads any input with bounded memory and never panics.
func FuzzVerify(f *testing.F) {
	whole, key, head := golden(f)
	// The input is a small change of a valid log, so that the fuzzer can minimise it.
	f.Add(0, 0, []byte{}, byte(0))
	f.Add(700, 30, []byte("\n\n{}"), byte(1))
	f.Add(3000, 5, []byte(`{"seq":9007199254740991,"log":"`), byte(6))
	f.Add(0, len(whole), []byte(`{"seq":1,"log":"AAAAAAAAAAAAAAAA","prev":"`), byte(3))
	f.Fuzz(func(t *testing.T, at, gone int, put []byte, how byte) {
		at = max(0, min(at, len(whole)))
		gone = max(0, min(gone, len(whole)-at))
		b := slices.Concat(whole[:at], put, whole[at+gone:])
		if how&8 != 0 {
			b = append(b, b[:at]...)
		}
		if how&4 != 0 { // with recomputed hashes
			var ls [][]byte
			for l := range bytes.Lines(b) {
				if bytes.Contains(l, []byte(`,"hash":"`)) && bytes.Contains(l, []byte(`"prev":"`)) && len(l) > 200 {
					text, _, _ := bytes.Cut(l, []byte(`,"hash":"`))
					sum := sha256.Sum256(text)
					l = []byte(string(text) + `,"hash":"` + hex.EncodeToString(sum[:]) + "\"}\n")
				}
				ls = append(ls, l)
			}
			b = bytes.Join(ls, nil)
		}
		check := audit.Check{Heads: []audit.Head{head}}
		if how&2 != 0 {
			check.Keys = []audit.PublicKey{key}
		}
		r, err := audit.Verify(check, audit.Source{Name: "x", Reader: bytes.NewReader(b)}, audit.Source{Name: "y", Reader: bytes.NewReader(put)})
		if err != nil {
			t.Fatal(err)
		}
		// Only the unchanged log has the stored head.
		if r.OK() && !bytes.Equal(bytes.Join([][]byte{b, put}, nil), whole) && !bytes.Equal(bytes.Join([][]byte{put, b}, nil), whole) {
			t.Errorf("a change is not found: %+v", r)
		}
		for _, f := range r.Findings {
			if strings.ContainsFunc(f.String(), func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("control characters in %q", f.String())
			}
		}
	})
}

// The cost of verifying an audit log.
func BenchmarkVerify(b *testing.B) {
	c := config(b)
	l := open(b, c)
	write(b, l, 5000)
	closeLog(b, l)
	text, err := os.ReadFile(c.Path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if r, err := audit.Verify(pinned(c), audit.Source{Name: "x", Reader: bytes.NewReader(text)}); err != nil || !r.OK() {
			b.Fatal(r, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/5002, "ns/line")
}
