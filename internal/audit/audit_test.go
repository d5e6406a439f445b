package audit_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

func TestConclude(t *testing.T) {
	for _, tt := range []struct {
		err    error
		result audit.Result
		code   problem.Code
	}{
		{nil, audit.Done, ""},
		{problem.New(problem.NotReady, "not yet"), audit.NotYet, problem.NotReady},
		{problem.New(problem.NoCapability, "no"), audit.Refused, problem.NoCapability},
		{problem.New(problem.Unavailable, "down"), audit.Failed, problem.Unavailable},
		{errors.New("boom"), audit.Failed, problem.Internal},
	} {
		var e audit.Entry
		e.Conclude(tt.err)
		if e.Result != tt.result || e.Code != tt.code {
			t.Errorf("%v: %s %s", tt.err, e.Result, e.Code)
		}
	}
}

// An entry is one line, whatever a caller puts into it (law 10).
func TestAnEntryIsOneLine(t *testing.T) {
	want := audit.Entry{
		Time:  time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Actor: audit.ActorOf(access.Caller{Login: "a@b", Device: access.Device{ID: "n1", Name: "evil\r\n\x1b[31m{\"ts\":1}"}, Via: access.ViaTailnet}),
		Verb:  access.SigninLogin, Args: map[string]string{"role": "x\ny"},
	}
	line := recorded(t, want)
	if n := strings.Count(line, "\n"); n != 1 {
		t.Errorf("%d lines: %q", n, line)
	}
	if strings.ContainsAny(line, "\r\x1b") {
		t.Errorf("control characters: %q", line)
	}
	var got audit.Entry
	if err := json.Unmarshal([]byte(line), &got); err != nil || got.Actor.Node != want.Actor.Node {
		t.Errorf("read back %+v, %v", got, err)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestALostEntryIsCounted(t *testing.T) {
	c := config(t)
	c.Path, c.Writer, c.Required = "", fullDisk{}, true
	log := open(t, c)
	if err := log.Write(audit.Entry{}); err == nil {
		t.Error("a lost entry is no error")
	}
	if err := log.Close(); err == nil {
		t.Error("the end of a log that lost an entry is no error")
	}
	if n := log.Stats().Dropped; n != 1 {
		t.Errorf("dropped %d", n)
	}
}

func TestIDsSortByTime(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var ids []string
	for i := range 50 {
		id := audit.NewID(t0.Add(time.Duration(i) * time.Millisecond))
		if len(id) != 26 || strings.Trim(id, "0123456789ABCDEFGHJKMNPQRSTVWXYZ") != "" {
			t.Fatalf("id %q", id)
		}
		ids = append(ids, id)
	}
	if !slices.IsSorted(ids) {
		t.Error("not in the order of time")
	}
}
