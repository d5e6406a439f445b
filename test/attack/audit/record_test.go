package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// recordOfServer runs a server for a few requests. It returns its audit log, line by line with the line feeds, and
// the key that signs it.
func recordOfServer(t *testing.T, s *attacktest.Env, x *attacktest.Server) [][]byte {
	t.Helper()
	alice := s.Alice(t)
	host, _, _ := strings.Cut(x.Name, ".")
	s.WaitPeer(t, alice, host)
	for i := range 8 {
		x.Ask(t, alice, "GET", fmt.Sprintf("/nothing/%d", i), "")
		x.Ask(t, alice, "GET", attacktest.API+"/whoami", "")
	}
	if err := x.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(x.Record)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(bytes.Lines(text))
}

// rehashed returns a changed line with a matching hash. An attacker with the disk but without the key can produce
// that.
func rehashed(line []byte, prev string, replace ...string) (out []byte, hash string) {
	text, _, _ := bytes.Cut(line, []byte(`,"hash":"`))
	s := strings.NewReplacer(replace...).Replace(string(text))
	if i := strings.Index(s, `"prev":"`) + len(`"prev":"`); prev != "" {
		s = s[:i] + prev + s[i+64:]
	}
	hash = fmt.Sprintf("%x", sha256.Sum256([]byte(s)))
	return fmt.Appendf(nil, "%s,\"hash\":\"%s\"}\n", s, hash), hash
}

// AU-05. Offline verification finds any change of a real server's audit log that was made without its key. It reports
// the kind of change and the first affected line. After a key change, verification needs both keys.
//
// Guard: audit.Verify and cli.(*tka).doAuditVerify.
func TestAU05_TheRecordIsManipulated(t *testing.T) {
	s := attacktest.Start(t)
	east := s.StartServer(t, "au05-east", attacktest.ServerOptions{})
	ls := recordOfServer(t, s, east)
	westOptions := attacktest.ServerOptions{Replace: []string{"name: east", "name: west"}}
	west := s.StartServer(t, "au05-west", westOptions)
	other := recordOfServer(t, s, west)
	m := s.NewMachine(t, s.Alice(t))
	file := m.Path("audit.jsonl")
	head := ""
	verify := func(want int, lines [][]byte, keys ...string) (r struct {
		OK       bool
		Entries  int64
		Last     string
		Findings []audit.Finding
	}, said string) {
		t.Helper()
		if err := os.WriteFile(file, bytes.Join(lines, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"audit", "verify", file}
		for _, k := range keys {
			args = append(args, "--key", k)
		}
		if head != "" {
			args = append(args, "--head", head)
		}
		text := m.Exec(want, "tka", append(args, "-o", "json")...).Stdout
		attacktest.Decode(t, text, &r)
		return r, m.Exec(want, "tka", args...).Stdout
	}
	key := east.AuditKey(t)
	good, _ := verify(0, ls, key) // control
	switch {
	case !good.OK:
		t.Fatalf("the record as it was written: good.OK is false; good = %+v, %d", good, len(ls))
	case good.Entries < 16:
		t.Fatalf("the record as it was written: good.Entries = %v, want at least 16", good.Entries)
	case len(ls) < 18:
		t.Fatalf("the record as it was written: len(ls) = %v, want at least 18", len(ls))
	}
	head = good.Last

	at := 6 // an entry in the middle, counted from 0
	id := func(i int) string {
		l, err := audit.ParseLine(bytes.TrimSuffix(ls[i], []byte("\n")))
		if err != nil {
			t.Fatal(err)
		}
		var e struct{ RequestID string }
		if json.Unmarshal(l.Text, &e) != nil || e.RequestID == "" {
			t.Fatalf("line %d is no entry: %s", i+1, l.Text)
		}
		return e.RequestID
	}
	without := func(from, to int) [][]byte { return slices.Delete(slices.Clone(ls), from, to) }
	with := func(lines [][]byte, i int, more ...[]byte) [][]byte {
		return slices.Insert(slices.Clone(lines), i, more...)
	}
	changed, hash := rehashed(ls[at], "", "alice@example.com", "mallory@example.com")
	onward := [][]byte{changed}
	for _, l := range ls[at+1:] {
		var next []byte
		next, hash = rehashed(l, hash)
		onward = append(onward, next)
	}
	for _, tt := range []struct {
		what  string
		lines [][]byte
		fault audit.Fault
		line  int
		id    string // "" if it belongs to no entry
	}{
		{"edited", with(without(at, at+1), at, bytes.Replace(ls[at], []byte("alice@"), []byte("carol@"), 1)), audit.Edited, at + 1, id(at)},
		{"edited, with its hash", with(without(at, at+1), at, changed), audit.Spliced, at + 1, id(at)},
		{"edited, with all hashes after it", slices.Concat(ls[:at], onward), audit.BadSignature, 2, id(1)},
		{"lines cut out", without(at, at+3), audit.Cut, at + 1, id(at + 3)},
		{"the end cut off", ls[:len(ls)-3], audit.Truncated, len(ls) - 3, id(len(ls) - 4)},
		{"the end cut off in a line", append(slices.Clone(ls[:len(ls)-3]), ls[len(ls)-3][:40]), audit.Truncated, len(ls) - 2, ""},
		{"all of it cut off", nil, audit.Truncated, 0, ""},
		{"the beginning cut off", ls[1:], audit.NoHeader, 1, id(1)},
		{"two lines swapped", slices.Concat(ls[:at], [][]byte{ls[at+1], ls[at]}, ls[at+2:]), audit.Reordered, at + 1, id(at + 1)},
		{"a line repeated", with(ls, at+1, ls[at]), audit.Repeated, at + 2, id(at)},
		{"forked", with(ls, at+1, changed), audit.Forked, at + 2, id(at)},
		{"another cluster's lines put in", with(ls, at, other[3:5]...), audit.Spliced, at + 1, ""},
		{"another cluster's record in its place", other, audit.UnknownKey, 1, ""},
		{"text put in", with(ls, at, []byte("{\"seq\":7}\n")), audit.Unreadable, at + 1, ""},
	} {
		r, said := verify(3, tt.lines, key)
		if r.OK || len(r.Findings) == 0 {
			t.Errorf("%s: not found", tt.what)
			continue
		}
		f := r.Findings[0]
		switch {
		case f.Fault != tt.fault:
			t.Errorf("%s: f.Fault = %q, want %q", tt.what, f.Fault, tt.fault)
		case f.At.Line != tt.line && tt.line > 0:
			t.Errorf("%s: f.At.Line != tt.line && tt.line > 0, %v, %d, %s, %s, %d, %s",
				tt.what, f, f.At.Line, f.At.RequestID, tt.fault, tt.line, tt.id)
		case tt.id != "" && f.At.RequestID != tt.id:
			t.Errorf(`%s: tt.id != "" && f.At.RequestID != tt.id, %v, %d, %s, %s, %d, %s`,
				tt.what, f, f.At.Line, f.At.RequestID, tt.fault, tt.line, tt.id)
		}
		if tt.line > 0 && !strings.Contains(said, fmt.Sprintf("%s:%d: %s: ", file, tt.line, tt.fault)) || !strings.Contains(said, "The audit log is not intact.") && tt.lines != nil {
			t.Errorf("%s: the output is\n%s", tt.what, said)
		}
	}

	// Another key: the server continues the audit log, and verification needs both keys.
	first := west.AuditKey(t)
	if err := os.Remove(filepath.Join(west.Dir, "state", "audit.key")); err != nil {
		t.Fatal(err)
	}
	west.Restart(t, "au05-west-again", westOptions)
	second := west.AuditKey(t)
	both := recordOfServer(t, s, west)
	head = ""
	if r, _ := verify(0, both, first, second); first == second || !r.OK {
		t.Errorf("with both keys: %+v", r)
	}
	for _, only := range []string{first, second} {
		r, _ := verify(3, both, only)
		line := 1
		if only == first {
			line = len(other) + 1
		}
		switch {
		case len(r.Findings) == 0:
			t.Errorf("with one key, of line: len(r.Findings) = %v", len(r.Findings))
		case r.Findings[0].Fault != audit.UnknownKey:
			t.Errorf("with one key, of line: r.Findings[0].Fault = %q, want %q", r.Findings[0].Fault, audit.UnknownKey)
		case r.Findings[0].At.Line != line:
			t.Errorf("with one key, of line: r.Findings[0].At.Line = %v, want %v", r.Findings[0].At.Line, line)
		}
	}
}

// AU-06. Requests of strangers create no metric series. They are counted under fixed label values, and each refusal
// is counted once.
//
// Guard: health.(*Metrics).MeasureServer, whose labels are closed sets; httpapi.logSampler, which logs a repeated refusal once and
// counts the others.
func TestAU06_UnknownCallersMakeNoSeries(t *testing.T) {
	s := attacktest.Start(t)
	const each, devices = 2000, 5
	var people []*testenv.Person
	for i := range devices { // known to the tailnet, without any grant
		people = append(people, s.Person(t, fmt.Sprintf("au06-%d", i), fmt.Sprintf("stranger%d@example.com", i)))
	}
	seed, host := rand.Uint64(), "tka."+s.Net.Suffix()
	request := func(i int, random string) string {
		method := []string{"GET", "POST", "PUT", "DELETE", "BREW" + random}[i%5]
		path := []string{"/" + random, attacktest.API + "/" + random, attacktest.API + "/login", attacktest.API + "/kubeconfig?wait=" + random, attacktest.API + "/login/" + random}[i/5%5]
		name, origin := host, ""
		if i%3 == 0 {
			name = random + ".example"
		}
		if i%2 == 0 {
			origin = "Origin: https://" + random + "\r\n"
		}
		return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nX-Forwarded-For: %s\r\nX-Request-Id: %s\r\n%sContent-Length: 0\r\n\r\n", method, path, name, random, random, random, origin)
	}
	storm := func(n int) {
		t.Helper()
		var wg sync.WaitGroup
		failed := make(chan string, devices)
		for k, p := range people {
			random := rand.New(rand.NewPCG(seed, uint64(n*devices+k)))
			requests := make([]string, n)
			for i := range requests {
				requests[i] = request(i, fmt.Sprintf("x%016x", random.Uint64()))
			}
			wg.Go(func() {
				got, err := pipeline(s, t.Context(), p, host, requests)
				if err != nil || got[http.StatusOK]+got[http.StatusAccepted]+got[http.StatusInternalServerError] > 0 {
					failed <- fmt.Sprintf("%v, %v", got, err)
				}
			})
		}
		wg.Wait()
		for len(failed) > 0 {
			t.Errorf("seed %d: %s", seed, <-failed)
		}
	}
	storm(150) // one of each kind first, for series that exist from their first event on
	before := s.Samples(t, s.Access)
	m, log := s.Mark(t), attacktest.FileSize(t, s.Access.Log)
	storm(each)
	after := s.Samples(t, s.Access)
	for name := range after {
		if _, there := before[name]; !there && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("seed %d: a new series: %s", seed, name)
		}
		for _, theirs := range []string{"stranger", "au06", "example", "BREW", "x0", "BREWx"} {
			if strings.Contains(name, theirs) {
				t.Errorf("a label of the audit log: %s", name)
			}
		}
	}
	// Each refusal is counted once: by reason, by operation, and in the audit log.
	const n = each * devices
	grown := func(prefix string) (sum float64) {
		for name, v := range after {
			if strings.HasPrefix(name, prefix) {
				sum += v - before[name]
			}
		}
		return sum
	}
	switch refused, requests, recorded := grown("tailplane_refusals_total{"), grown("tailplane_requests_total{"), len(m.Entries(t)); {
	case refused != n:
		t.Errorf("refused = %v, want %v", refused, n)
	case requests != n:
		t.Errorf("requests = %v, want %v", requests, n)
	case recorded != n:
		t.Errorf("recorded = %v, want %v", recorded, n)
	}
	if asked := m.Requests(t, attacktest.AccessAccount); len(asked) > 50 { // the server's own background requests
		t.Errorf("%d requests to the API server", len(asked))
	}
	if said := attacktest.FileSize(t, s.Access.Log) - log; said > 64<<10 {
		t.Errorf("the log grew by %d bytes", said)
	}
	// Unknown paths of the probe listener create no series.
	for _, p := range []string{"/metrics/x", "/x", "/livez/../x"} {
		attacktest.RawProbe(t, s.ProbeAddress(t, s.Access), "GET "+p+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	}
	last := s.Samples(t, s.Access)
	if len(last) > len(after)+2 { // at most those of the Go runtime
		t.Errorf("%d series, then %d", len(after), len(last))
	}
	// Control: a granted request is counted under its own operation.
	if _, err := signin.Read.Call(t.Context(), s.APIClient(s.Alice(t)), signin.ReadRequest{}); err != nil && problem.CodeOf(err) != problem.NotSignedIn {
		t.Fatal(err)
	}
	const read = `tailplane_requests_total{code="4xx",listener="tailnet",op="signin.read"}`
	if now := s.Samples(t, s.Access); now[read] != last[read]+1 {
		t.Errorf("%s: %v, then %v", read, last[read], now[read])
	}
}
