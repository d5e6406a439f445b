package cli_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
)

// auditLogOf returns the file of an audit log of the cluster prod-us with n entries, and its last statement.
func auditLogOf(t *testing.T, path string, n int) audit.SignedHead {
	t.Helper()
	key, err := audit.KeyFromSeed(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	l, err := audit.Open(audit.Config{Path: path, Cluster: "prod-us", ClusterID: "id-prod-us", Role: "access", Key: key, Delay: time.Minute,
		CloseTime: time.Minute, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := l.Write(audit.Entry{Time: time.Now(), RequestID: fmt.Sprint("R", i), Verb: access.SigninRead, Result: audit.Done}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	h, _ := l.Signed()
	return h
}

// AU-07: a server of another cluster has witnessed the log. tka clusters names a log that was rolled back, and tka audit verify --witness
// compares a file with it. Only the entry with the verified key counts: another server claims the same cluster.
func TestAU07_tka_asks_the_witness(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	us, usURL := newAccessServer(t, "prod-us")
	m := newMachine(t, euURL.URL)
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	auditLogOf(t, file, 5)
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	last := auditLogOf(t, file, 10)

	entry := func(logs ...audit.SignedHead) gossip.Member {
		x := member(us, usURL.URL)
		x.Audit = logs
		return x
	}
	liar := member(us, usURL.URL)
	liar.Node, liar.Conflict, liar.Verified = "n-liar", true, false
	forged := last
	forged.Last.Head.Seq = 1 << 40
	liar.Audit = []audit.SignedHead{forged}
	eu.addCluster(euURL.URL, entry(last), liar)
	verify := func(args ...string) result {
		return m.run(append([]string{"audit", "verify", "--witness", "--cluster", "prod-us", file}, args...)...)
	}

	if r := m.run("clusters"); r.code != 0 || strings.Contains(r.out+r.err, "rolled back") {
		t.Errorf("an intact log: code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := verify(); r.code != 0 || !strings.Contains(r.out, fmt.Sprintf("Witnessed up to the last line, %d.", last.Last.Head.Seq)) {
		t.Errorf("an intact log: code %d\n%s%s", r.code, r.out, r.err)
	}
	auditLogOf(t, file, 3)
	if r := verify(); r.code != 0 || !strings.Contains(r.out, fmt.Sprintf("the lines %d to %d have no witness yet", last.Last.Head.Seq+1, last.Last.Head.Seq+5)) {
		t.Errorf("a log that goes on: code %d\n%s%s", r.code, r.out, r.err)
	}

	if err := os.WriteFile(file, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := m.run("audit", "verify", file); r.code != 0 {
		t.Errorf("an older copy, without a witness: code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := verify(); r.code != 3 || !strings.Contains(r.out, last.Last.Head.String()) {
		t.Errorf("an older copy: code %d\n%s%s", r.code, r.out, r.err)
	}
	var report struct {
		OK          bool
		Unwitnessed int64
		Findings    []audit.Finding
	}
	if r := verify("-o", "json"); json.Unmarshal([]byte(r.out), &report) != nil || report.OK {
		t.Errorf("an older copy: %+v\n%s", report, r.err)
	}
	rolledBack := last
	rolledBack.Last.Head.Seq, rolledBack.RolledBack = 7, last.Last
	eu.addCluster(euURL.URL, entry(rolledBack), liar)
	r := m.run("clusters")
	for _, want := range []string{"audit log rolled back", "the audit log " + last.Last.Log + " (access) of prod-us was rolled back: it lacks the line " + last.Last.Head.String(), "tka audit verify --witness --cluster prod-us FILE"} {
		if !strings.Contains(r.out+r.err, want) {
			t.Errorf("tka clusters does not say %q:\n%s%s", want, r.out, r.err)
		}
	}
	var list struct{ Items []gossip.Cluster }
	if r := m.run("clusters", "-o", "json"); json.Unmarshal([]byte(r.out), &list) != nil || !strings.Contains(r.out, `"rolledBack": "`+last.Last.String()+`"`) {
		t.Errorf("as JSON:\n%s%s", r.out, r.err)
	}
	for _, tt := range []struct {
		args []string
		code int
		word string
	}{
		{[]string{"--witness", file}, 1, "has witnessed no audit log of prod-eu"},
		{[]string{"--witness", "--cluster", "prod-asia", file}, 3, "knows no verified cluster prod-asia"},
		{[]string{"--cluster", "prod-us", file}, 2, "--witness"},
	} {
		if r := m.run(append([]string{"audit", "verify"}, tt.args...)...); r.code != tt.code || !strings.Contains(r.err, tt.word) {
			t.Errorf("%v: code %d, want %d and %q\n%s%s", tt.args, r.code, tt.code, tt.word, r.out, r.err)
		}
	}

	// A shell of tka is about sign-ins. It does not change which log is compared: that of the access server's cluster.
	m.env["TKA_CLUSTER"], m.env["TKA_SESSION"] = "prod-us", "deploy"
	if r := m.run("audit", "verify", "--witness", file); r.code != 1 || !strings.Contains(r.err, "has witnessed no audit log of prod-eu") {
		t.Errorf("in a shell of another cluster: code %d, want 1 and prod-eu\n%s%s", r.code, r.out, r.err)
	}
	if r := verify(); r.code != 3 || !strings.Contains(r.out, last.Last.Head.String()) {
		t.Errorf("in a shell, with --cluster: code %d, want 3\n%s%s", r.code, r.out, r.err)
	}
}
