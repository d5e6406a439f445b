package accessproxy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/proxytest"
)

const (
	aliceAt, bobAt, planeAt = "127.0.0.2", "127.0.0.3", "127.0.0.4"
	ownPath                 = connections.Prefix + "v1/connections"
)

// endless answers a watch with one event and leaves it open.
func endless(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"type":"ADDED","object":{}}`+"\n")
	http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// startOwn starts a proxy with alice in two sessions, bob, and a plane.
func startOwn(t *testing.T) *proxytest.Front {
	f := proxytest.Start(t, proxytest.StartAPI(t, endless))
	alice, bob := proxytest.Person("alice@example.com", "alice-laptop", proxytest.ViewRule), proxytest.Person("bob@example.com", "bob-laptop", proxytest.ViewRule)
	f.Signins.Login(alice, "", time.Hour)
	f.Signins.Login(alice, "deploy", time.Hour)
	f.Signins.Login(bob, "", time.Hour)
	plane := proxytest.Person("", "dashboard")
	plane.UserID, plane.Tags = "", []access.Tag{"tag:plane"}
	f.Tailnet.Set(planeAt, plane)
	return f
}

// watch opens a watch and reads its first event.
func watch(t *testing.T, f *proxytest.Front, from string, session signin.Session) *bufio.Reader {
	t.Helper()
	_, in := f.Raw(t, from, "GET "+strings.TrimSuffix(signin.SessionPath(session), "/")+"/api/v1/namespaces/shop/pods?watch=1 HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer "+signin.SessionToken(session)+"\r\n\r\n")
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("watch: %v, %v", res, err)
	}
	body := bufio.NewReader(res.Body)
	if line, err := body.ReadString('\n'); err != nil {
		t.Fatalf("watch: %q, %v", line, err)
	}
	return body
}

func list(t *testing.T, f *proxytest.Front, from, query string) connections.List {
	t.Helper()
	res, body := proxytest.Do(t, f.Client(t, from, false), proxytest.Request(t, "GET", ownPath+query, "", "Authorization", ""))
	var out connections.List
	if err := json.Unmarshal([]byte(body), &out); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("list: %d %s", res.StatusCode, body)
	}
	return out
}

func cutAt(t *testing.T, f *proxytest.Front, from, id, body string) (int, string) {
	t.Helper()
	res, got := proxytest.Do(t, f.Client(t, from, false), proxytest.Request(t, "POST", ownPath+"/"+id+"/cut", body, "Authorization", "", "Content-Type", "application/json"))
	return res.StatusCode, got
}

func streamsOf(l connections.List) (all []string) {
	for _, s := range l.Streams {
		all = append(all, fmt.Sprintf("%s %s %q %s %s/%s", s.Login, s.Device, s.Session, s.Kind, s.Namespace, s.Resource))
	}
	slices.Sort(all)
	return all
}

// PRX-18: a person lists and cuts the streams of its own, and the plane those of all. A cut ends one stream with the
// reason, and is one audit entry. Nothing of it reaches the API server.
func TestPRX18_OwnStreams(t *testing.T) {
	f := startOwn(t)
	first, second, bobs := watch(t, f, aliceAt, ""), watch(t, f, aliceAt, "deploy"), watch(t, f, bobAt, "")
	arrived := f.API.Count()
	alices := []string{`alice@example.com alice-laptop.example.ts.net "" watch shop/pods`, `alice@example.com alice-laptop.example.ts.net "deploy" watch shop/pods`}
	bobOnly := []string{`bob@example.com bob-laptop.example.ts.net "" watch shop/pods`}
	for from, want := range map[string][]string{aliceAt: alices, bobAt: bobOnly, planeAt: slices.Concat(alices, bobOnly)} {
		if diff := cmp.Diff(want, streamsOf(list(t, f, from, ""))); diff != "" {
			t.Errorf("%s sees (-want +got):\n%s", from, diff)
		}
	}
	if got := list(t, f, planeAt, "?login=bob@example.com"); cmp.Diff(bobOnly, streamsOf(got)) != "" {
		t.Errorf("the plane's list of bob: %v", streamsOf(got))
	}
	if got := list(t, f, planeAt, "?limit=1"); len(got.Streams) != 1 || got.LeftOff != 2 {
		t.Errorf("a limit of 1: %d streams and %d left off, want 1 and 2", len(got.Streams), got.LeftOff)
	}
	of := func(session string) string {
		for _, s := range list(t, f, planeAt, "").Streams {
			if s.Login == "alice@example.com" && s.Session == session {
				return s.ID
			}
		}
		t.Fatalf("no stream of the session %q", session)
		return ""
	}
	for why, x := range map[string]struct {
		from, body string
		status     int
	}{
		"somebody else":           {bobAt, `{"reason": "mine"}`, http.StatusNotFound},
		"no reason":               {aliceAt, `{"reason": " "}`, http.StatusBadRequest},
		"two lines":               {aliceAt, `{"reason": "a\nb"}`, http.StatusBadRequest},
		"in the name of another":  {aliceAt, `{"reason": "x", "for": "bob@example.com"}`, http.StatusBadRequest},
		"the plane names nobody":  {planeAt, `{"reason": "x"}`, http.StatusBadRequest},
		"a device that is nobody": {"127.0.0.5", `{"reason": "x"}`, http.StatusUnauthorized},
	} {
		if status, body := cutAt(t, f, x.from, of("deploy"), x.body); status != x.status {
			t.Errorf("%s: %d %s, want %d", why, status, body, x.status)
		}
	}
	before := len(f.Audit(0))
	if status, body := cutAt(t, f, aliceAt, of(""), `{"reason": "the wrong cluster"}`); status != http.StatusOK {
		t.Fatalf("alice's cut: %d %s", status, body)
	}
	if rest, _ := io.ReadAll(first); !strings.Contains(string(rest), "the stream was cut by alice@example.com: the wrong cluster") {
		t.Errorf("the client read %q", rest)
	}
	if status, body := cutAt(t, f, planeAt, of("deploy"), `{"reason": "maintenance", "for": "carol@example.com"}`); status != http.StatusOK {
		t.Fatalf("the plane's cut: %d %s", status, body)
	}
	if rest, _ := io.ReadAll(second); !strings.Contains(string(rest), "the stream was cut by carol@example.com: maintenance") {
		t.Errorf("the client read %q", rest)
	}
	var entries []string
	for _, e := range f.Audit(before) {
		if e.Verb == access.ConnectionsCut {
			entries = append(entries, fmt.Sprintf("%s %s login=%s via=%s for=%s reason=%s", cmpOr(e.Actor.Login, e.Actor.Node), e.Result, e.Args["login"], e.Args["via"], e.Args["for"], e.Reason))
		}
	}
	if diff := cmp.Diff([]string{
		"alice@example.com done login=alice@example.com via= for= reason=the wrong cluster",
		"dashboard.example.ts.net done login=alice@example.com via=plane for=carol@example.com reason=maintenance",
	}, entries); diff != "" {
		t.Errorf("audit entries (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(bobOnly, streamsOf(list(t, f, planeAt, ""))); diff != "" {
		t.Errorf("left open (-want +got):\n%s", diff)
	}
	if n := f.API.Count(); n != arrived {
		t.Errorf("%d requests reached the API server", n-arrived)
	}
	_ = bobs
}

// cmpOr returns the first text that is not empty, apart from the name of a node without a person.
func cmpOr(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// PX-15: an idle connection is closed within 2 s after its node has left the tailnet, and those of other nodes stay.
func TestPX15_IdleConnectionOfAnAbsentNode(t *testing.T) {
	f := startOwn(t)
	_, alice := f.Raw(t, aliceAt, "GET /api HTTP/1.1\r\nHost: other\r\n\r\n")
	_, bob := f.Raw(t, bobAt, "GET /api HTTP/1.1\r\nHost: other\r\n\r\n")
	for _, in := range []*bufio.Reader{alice, bob} {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
	}
	began := time.Now()
	f.Tailnet.Remove(aliceAt)
	if _, err := alice.ReadByte(); err == nil || time.Since(began) > 2*time.Second {
		t.Errorf("the idle connection: %v after %v, want its end within 2 s", err, time.Since(began))
	}
	if got := list(t, f, bobAt, ""); len(got.Streams) != 0 {
		t.Errorf("bob: %v", got)
	}
	if bob.Buffered() != 0 {
		t.Error("bob's connection has unexpected bytes")
	}
}
