package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// A gossip is a request with its own encoding.
type gossip struct{ text string }

func (g *gossip) ReadBody(b []byte) error {
	if bytes.HasPrefix(b, []byte("bad")) {
		return errors.New("it begins badly")
	}
	g.text = string(b)
	return nil
}
func (*gossip) MaxBody() int                  { return 64 }
func (g gossip) MarshalJSON() ([]byte, error) { return json.Marshal(g.text) }

var exchange = httpapi.Op[gossip, response]{Pattern: "POST /gossip/v1/exchange", Verb: access.GossipExchange, Doc: "exchange", Routine: true}

// Requests between servers: HTTP/2 with prior knowledge in addition to HTTP/1.1, a body with its
// own encoding, and no audit entry for routine requests. DSC-09.
func TestServersAmongThemselves(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var entries []audit.Entry
	var caller access.Caller
	d := newTestServer(func(e audit.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		entries = append(entries, e)
		return nil
	})
	d.HTTP2 = true
	d.Identify = func(*http.Request) (access.Caller, error) {
		mu.Lock()
		defer mu.Unlock()
		return caller, nil
	}
	d.Decide = func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
		return access.Decide(c, v, access.Policy{Members: []access.Tag{"tag:tailplane"}}, now)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- d.Run(ctx, ln, nil, exchange.Serve(func(_ context.Context, _ access.Permit, g gossip) (response, error) {
			return response{Role: g.text}, nil
		}))
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	member := access.Caller{Device: access.Device{ID: "n9", Name: "tka"}, Tags: []access.Tag{"tag:tailplane"}, Via: access.ViaTailnet}
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		defer tr.CloseIdleConnections()
		tr.Protocols.SetHTTP1(proto == "HTTP/1.1")
		tr.Protocols.SetUnencryptedHTTP2(proto == "HTTP/2.0")
		for _, tt := range []struct {
			name   string
			caller access.Caller
			body   string
			status int
			code   problem.Code
		}{
			{"member", member, "hello", 200, ""},
			{"empty", member, "", 200, ""},
			{"unreadable", member, "bad", 400, problem.BadRequest},
			{"large", member, strings.Repeat("x", 65), 413, problem.TooLarge},
			{"another tag", access.Caller{Device: member.Device, Tags: []access.Tag{"tag:ci"}, Via: access.ViaTailnet}, "bad", 403, problem.NotAMember},
			{"a person, whatever the grants", alice(view), "bad", 403, problem.NotAMember},
			{"shared in", access.Caller{Device: member.Device, Tags: member.Tags, Shared: true, Via: access.ViaTailnet}, "bad", 403, problem.ForeignNode},
			{"expired", access.Caller{Device: member.Device, Tags: member.Tags, Expired: true, Via: access.ViaTailnet}, "bad", 401, problem.NodeExpired},
			{"Funnel", access.Caller{Via: access.ViaFunnel}, "bad", 403, problem.FunnelRefused},
		} {
			mu.Lock()
			caller, entries = tt.caller, nil
			mu.Unlock()
			res, err := (&http.Client{Transport: tr}).Post("http://"+ln.Addr().String()+"/gossip/v1/exchange", "application/json", strings.NewReader(tt.body))
			if err != nil {
				t.Fatalf("%s %s: %v", proto, tt.name, err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			switch {
			case err != nil:
				t.Errorf("%v; %s", err, tt.name)
			case res.StatusCode != tt.status:
				t.Errorf("res.StatusCode = %v, want %v; %s", res.StatusCode, tt.status, tt.name)
			case res.Proto != proto:
				t.Errorf("res.Proto = %q, want %q; %s", res.Proto, proto, tt.name)
			case !strings.Contains(string(b), string(tt.code)):
				t.Errorf("string(b) = %q does not contain %q; %s", string(b), string(tt.code), tt.name)
			}
			mu.Lock()
			if want := 1; tt.status == 200 && len(entries) != 0 || tt.status != 200 && (len(entries) != want || entries[0].Code != tt.code) {
				t.Errorf("%s %s: recorded %+v", proto, tt.name, entries)
			}
			mu.Unlock()
		}
	}
	// Any other protocol is rejected.
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(conn); !strings.Contains(string(b), "400") {
		t.Errorf("answered %q", b)
	}
}
