package attacktest

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

// LogMark is a moment in the logs. Its methods return the audit entries and API requests since then.
type LogMark struct {
	Env            *Env
	Product, kube_ int64
	record         string // path of the audit log; "": that of the shared server
}

func (s *Env) Mark(t *testing.T) LogMark {
	t.Helper()
	return LogMark{Env: s, Product: FileSize(t, s.AuditFile()), kube_: FileSize(t, s.KubeAuditFile)}
}

// Mark returns a moment in the audit log of this server.
func (x *Server) Mark(t *testing.T) LogMark {
	t.Helper()
	m := x.SystemEnv.Mark(t)
	m.Product, m.record = FileSize(t, x.Record), x.Record
	return m
}

func FileSize(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// ReadSince calls f for each complete line of a file that starts after an offset.
func ReadSince(t *testing.T, path string, from int64, f func(line []byte)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	whole := from == 0 // an offset can be inside a line that started before the mark
	if !whole {
		before := make([]byte, 1)
		if _, err := file.ReadAt(before, from-1); err != nil {
			t.Fatal(err)
		}
		whole = before[0] == '\n'
	}
	for r := bufio.NewReader(file); ; whole = true {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return // the last line is still being written
		}
		if err != nil {
			t.Fatal(err)
		}
		if whole {
			f(bytes.TrimSpace(line))
		}
	}
}

// Recorded returns all audit entries of the access server since the mark, including those about the process itself.
func (m LogMark) Recorded(t *testing.T) (out []audit.Entry) {
	t.Helper()
	ReadSince(t, cmp.Or(m.record, m.Env.AuditFile()), m.Product, func(text []byte) {
		line, err := audit.ParseLine(text)
		if err != nil {
			t.Fatalf("audit log: %q: %v", text, err)
		}
		content, err := line.Content()
		if err != nil || !line.Sound() {
			t.Fatalf("audit log: %q: %v", text, err)
		}
		switch c := content.(type) {
		case audit.Entry:
			out = append(out, c)
		}
		if line.Kind == audit.KindGap {
			t.Errorf("the audit log lost entries: %s", text)
		}
	})
	return out
}

// Entries returns the audit entries of the access server since the mark that are about requests.
func (m LogMark) Entries(t *testing.T) []audit.Entry {
	t.Helper()
	return slices.DeleteFunc(m.Recorded(t), func(e audit.Entry) bool { return e.Surface == "process" })
}

// KubeRequest is an entry of the API server's audit log about a request.
type KubeRequest struct {
	Stage, Verb, RequestURI string
	User                    struct{ Username string }
	ImpersonatedUser        *struct{ Username string }
	SourceIPs               []string
	UserAgent               string
	ObjectRef               struct{ Resource, Subresource, Namespace, Name string }
	RequestObject           json.RawMessage
}

func (k KubeRequest) String() string { return k.Verb + " " + k.RequestURI }

// Writes reports whether the request changes an object or creates a token.
func (k KubeRequest) Writes() bool {
	return !slices.Contains([]string{"get", "list", "watch"}, k.Verb)
}

// Requests returns the requests of an account to the API server since the mark. It omits watches and housekeeping.
func (m LogMark) Requests(t *testing.T, account string) []KubeRequest {
	t.Helper()
	return m.noted(t, account, "RequestReceived")
}

// housekeeping reports whether the server sends the request for itself, independently of any caller.
func (k KubeRequest) housekeeping() bool {
	return k.ObjectRef.Resource == "leases" ||
		k.ObjectRef.Resource == "configmaps" && (k.ObjectRef.Name == "tailplane-members" || k.ObjectRef.Name == "tailplane-gossip-pins")
}

// Bodies returns the same requests after their responses, with request bodies.
func (m LogMark) Bodies(t *testing.T, account string) (out []KubeRequest) {
	t.Helper()
	Eventually(t, Long, "all requests are answered", func() bool {
		out = m.noted(t, account, "ResponseComplete")
		return len(out) >= len(m.Requests(t, account))
	})
	return out
}

func (m LogMark) noted(t *testing.T, account, stage string) (out []KubeRequest) {
	t.Helper()
	ReadSince(t, m.Env.KubeAuditFile, m.kube_, func(line []byte) {
		var k KubeRequest
		if err := json.Unmarshal(line, &k); err != nil {
			t.Fatalf("the log of the API server: %q: %v", line, err)
		}
		if k.Stage == stage && k.User.Username == account && k.Verb != "watch" && !k.housekeeping() {
			out = append(out, k)
		}
	})
	return out
}

// Writes returns the requests that change an object or create a token.
func (m LogMark) Writes(t *testing.T, account string) []KubeRequest {
	t.Helper()
	return slices.DeleteFunc(m.Requests(t, account), func(k KubeRequest) bool { return !k.Writes() })
}

// Refused calls do and checks that it is refused with the code, in the standard form of a problem. The refusal must
// send no request to the API server and write exactly one audit entry with the reason. Neither response nor entry may
// contain a secret.
func (s *Env) Refused(t *testing.T, what string, code problem.Code, do func() Answer) (Answer, audit.Entry) {
	t.Helper()
	m := s.Mark(t)
	a := do()
	e := m.Refusal(t, what, code, a)
	if asked := m.Requests(t, AccessAccount); len(asked) > 0 {
		t.Errorf("%s: requests to the API server: %v", what, asked)
	}
	return a, e
}

// Refusal checks the response and its single audit entry.
func (m LogMark) Refusal(t *testing.T, what string, code problem.Code, a Answer) audit.Entry {
	t.Helper()
	if a.Code() != code || a.Status != code.Status() {
		t.Errorf("%s: %v, want %d %s", what, a, code.Status(), code)
	}
	switch {
	case a.Problem.Message == "":
		t.Errorf("%s: the message, advice or audit id is missing: a.Problem.Message is empty, %v, %v", what, a, a.Header)
	case len(a.Problem.Advice) == 0:
		t.Errorf("%s: the message, advice or audit id is missing: len(a.Problem.Advice) = %v", what, len(a.Problem.Advice))
	case a.Problem.AuditID == "":
		t.Errorf("%s: the message, advice or audit id is missing: a.Problem.AuditID is empty, %v, %v", what, a, a.Header)
	case a.Header.Get("X-Request-Id") != a.Problem.AuditID:
		t.Errorf(`%s: the message, advice or audit id is missing: a.Header.Get("X-Request-Id") != a.Problem.AuditID, %v, %v`,
			what, a, a.Header)
	}
	// Earlier refusals of others are aggregated in an entry that can appear now.
	entries := slices.DeleteFunc(m.Entries(t), func(e audit.Entry) bool { return e.Args["count"] != "" && e.RequestID != a.Problem.AuditID })
	if len(entries) != 1 {
		t.Errorf("%s: %d entries in the audit log, want 1: %+v", what, len(entries), entries)
		return audit.Entry{}
	}
	e := entries[0]
	switch {
	case e.RequestID != a.Problem.AuditID:
		t.Errorf("%s: recorded: e.RequestID = %q, want %q", what, e.RequestID, a.Problem.AuditID)
	case e.Code != code:
		t.Errorf("%s: recorded: e.Code = %q, want %q", what, e.Code, code)
	case e.Result == audit.Done:
		t.Errorf("%s: recorded: e.Result = %q", what, e.Result)
	case e.Result == audit.NotYet:
		t.Errorf("%s: recorded: e.Result = %q", what, e.Result)
	case e.Error == "":
		t.Errorf("%s: recorded: e.Error is empty, %+v", what, e)
	}
	line, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{a.Body, string(line)} {
		for _, secret := range []string{"eyJ", "tskey-", "nodekey:", "/tmp/", "goroutine "} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %q appears in %s", what, secret, text)
			}
		}
	}
	return e
}
