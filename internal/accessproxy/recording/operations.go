package recording

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// Bounds of a list.
const (
	pageLooks  = 2000    // recordings that one response examines
	maxPage    = 4 << 20 // bytes of a response
	maxCommand = 500     // bytes of a command
	maxName    = 253     // bytes of any other text
	playChunk  = 32 << 10
)

// PageSize is the largest number of recordings in one response.
const PageSize = 200

// CastType is the media type of a recording.
const CastType = "application/x-asciicast"

// A RecordingID is the id of a recording; see [NewID].
type RecordingID string

// MarshalText implements [encoding.TextMarshaler].
func (id RecordingID) MarshalText() ([]byte, error) { return []byte(id), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (id *RecordingID) UnmarshalText(b []byte) error {
	if len(b) > 0 && !idForm.Match(b) {
		return fmt.Errorf("%.60q is no id of a recording", b)
	}
	*id = RecordingID(b)
	return nil
}

// Text is a parameter of a query.
type Text string

// MarshalText implements [encoding.TextMarshaler].
func (t Text) MarshalText() ([]byte, error) { return []byte(t), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Text) UnmarshalText(b []byte) error {
	if len(b) > maxName {
		return fmt.Errorf("it has more than %d bytes", maxName)
	}
	*t = Text(b)
	return nil
}

// A ListRequest asks for recordings.
type ListRequest struct {
	Before RecordingID `json:"-" query:"before" doc:"only recordings whose id is smaller; the value of next of the previous page"`
	Login  Text        `json:"-" query:"login" doc:"only recordings of this login"`
	ID     RecordingID `json:"-" query:"id" doc:"only this recording"`
}

// A GetRequest asks for one recording.
type GetRequest struct {
	ID  RecordingID `json:"-" path:"id" doc:"id of the recording"`
	For Text        `json:"-" query:"for" doc:"only from an operator plane, which must set it: the person who asked, for the audit log"`
}

// AuditArgs implements httpapi.AuditArguer.
func (r GetRequest) AuditArgs() map[string]string {
	args := map[string]string{"recording": string(r.ID)}
	if r.For != "" {
		args["for"] = string(r.For)
	}
	return args
}

// A Summary describes a recording. The access proxy wrote all texts; long ones are cut.
type Summary struct {
	ID        string    `json:"id"`
	State     State     `json:"state"`
	Bytes     int64     `json:"bytes"`
	Started   time.Time `json:"started"`
	Modified  time.Time `json:"modified"`         // of the file
	SHA256    string    `json:"sha256,omitempty"` // of a complete recording, in hexadecimal
	Login     string    `json:"login,omitempty"`
	UserID    int64     `json:"userID,omitempty"` // of the login, at the control server; 0: not known
	Tags      []string  `json:"tags,omitempty"`   // of a tagged node
	Device    string    `json:"device"`
	Cluster   string    `json:"cluster,omitempty"`
	SignIn    string    `json:"signin,omitempty"`
	Session   string    `json:"session,omitempty"`
	Role      string    `json:"role,omitempty"`
	AuditID   string    `json:"auditID,omitempty"`
	Kind      string    `json:"kind"` // exec, attach or portForward
	TTY       bool      `json:"tty"`  // it shows a terminal; otherwise it has sizes and hashes
	Input     bool      `json:"input"`
	Namespace string    `json:"namespace,omitempty"`
	Pod       string    `json:"pod,omitempty"`
	Container string    `json:"container,omitempty"`
	Command   string    `json:"command,omitempty"`
}

// A Page is a part of the list, newest first.
type Page struct {
	Recordings []Summary `json:"recordings"`
	Next       string    `json:"next,omitempty"` // "before" of the next page; "": this is the last one
}

// The operations of a recorder.
var (
	ListRecordings = httpapi.Op[ListRequest, Page]{Pattern: "GET /api/v1/recordings", Verb: access.RecordingsList, MaxResponse: maxPage,
		Doc:       "List recordings, the newest first: those of the caller's own sessions, or all. An operator plane lists all.",
		Responses: []Page{{Recordings: []Summary{exampleSummary}, Next: exampleSummary.ID}}, Refusals: refusals}
	GetRecording = httpapi.Op[GetRequest, Cast]{Pattern: "GET /api/v1/recordings/{id}", Verb: access.RecordingsRead,
		Doc:       "Get a recording as an asciicast of version 2. One that is live is returned as far as it is written. Its bytes are those of the recorded program, so a player must filter them.",
		Responses: []Cast{{}}, Refusals: append([]problem.Code{problem.NotFound}, refusals...)}
	refusals       = []problem.Code{problem.TaggedNode, problem.NotAuthorized, problem.BadCapability}
	exampleSummary = Summary{ID: "20261122T114108Z-0123456789abcdef", State: Complete, Bytes: 20480, Started: exampleTime, Modified: exampleTime.Add(4 * time.Minute),
		SHA256: strings.Repeat("0123456789abcdef", 4), Login: "alice@example.com", UserID: 7, Device: "alice-laptop.tail1234.ts.net", Cluster: "prod-eu", SignIn: "alice-example-com-0f3c9a1b2d4e5f607182",
		Session: "default", Role: "edit", AuditID: "9392fdf7-363b-4154-8550-6808e60c92c3", Kind: "exec", TTY: true, Namespace: "shop", Pod: "web-0", Container: "app", Command: "bash"}
	exampleTime = time.Date(2026, 11, 22, 11, 41, 8, 0, time.UTC)
)

// Operations returns the declarations of the operations, for the generated reference.
func Operations() (all []httpapi.Declaration) {
	for _, r := range new(Dir).Routes() {
		all = append(all, r.Declaration)
	}
	return all
}

// Cast is an example of a recording, for the generated reference: an asciicast of version 2.
type Cast struct{}

// EncodeResponse implements [httpapi.Responder]. Only the reference uses it; no request receives it as its response.
func (Cast) EncodeResponse(string) (httpapi.Response, error) {
	return httpapi.Response{Status: http.StatusOK, ContentType: CastType, Body: "{\"version\":2,\"width\":80,\"height\":24}\n[0.5,\"o\",\"$ ls\\r\\n\"]\n"}, nil
}

// Forms returns the media type of a recording, for the generated reference.
func (Cast) Forms() map[string]any { return map[string]any{CastType: ""} }

// Routes returns the routes of the operations.
func (d *Dir) Routes() []httpapi.Route {
	return []httpapi.Route{ListRecordings.Serve(d.listFor), GetRecording.ServeStream(d.play)}
}

// mayRead reports whether a permit covers a recording: all, or those of the caller's own sessions. A recording names its caller by login
// and, for a person, by the id of the user, because another user may get the login later.
func mayRead(p access.Permit, h Header) bool {
	return p.IsPlane() || p.Everywhere() || IsOwn(p.Caller(), h.SrcNodeUser, h.SrcNodeUserID)
}

// IsOwn reports whether a recording with a login and the id of a user is of a session of c. The id is 0 if the recording has none.
func IsOwn(c access.Caller, login string, userID int64) bool {
	id, _ := strconv.ParseInt(c.UserID, 10, 64)
	own := c.Login != "" && string(c.Login) == login
	return own && (userID == 0 || userID == id)
}

func (d *Dir) listFor(_ context.Context, p access.Permit, req ListRequest) (Page, error) {
	if err := p.Require(access.RecordingsList, d.cfg.Now()); err != nil {
		return Page{}, err
	}
	page, before := Page{Recordings: []Summary{}}, string(req.Before)
	if req.ID != "" {
		f, info, err := d.Open(string(req.ID))
		if errors.Is(err, fs.ErrNotExist) {
			return page, nil
		}
		if err != nil {
			return Page{}, err
		}
		if mayRead(p, info.Header) {
			page.Recordings = append(page.Recordings, info.Summary())
		}
		return page, f.Close()
	}
	for looked := 0; looked < pageLooks; {
		list, err := d.List(before, PageSize)
		if err != nil {
			return Page{}, err
		}
		for _, i := range list {
			if before = i.ID; mayRead(p, i.Header) && (req.Login == "" || string(req.Login) == i.Header.SrcNodeUser) {
				page.Recordings = append(page.Recordings, i.Summary())
			}
			if len(page.Recordings) == PageSize {
				page.Next = before
				return page, nil
			}
		}
		if looked += len(list); len(list) < PageSize {
			return page, nil
		}
	}
	page.Next = before
	return page, nil
}

// Summary returns the description of a recording.
func (i Info) Summary() Summary {
	h := i.Header
	t, k := cmp.Or(h.Tailplane, &Details{}), cmp.Or(h.Kubernetes, &Kubernetes{})
	s := Summary{ID: i.ID, State: i.State, Bytes: i.Bytes, Started: time.Unix(h.Timestamp, 0).UTC(), Modified: i.Modified.UTC(), SHA256: i.SHA256,
		Login: cut(h.SrcNodeUser, maxName), UserID: h.SrcNodeUserID, Device: cut(h.SrcNode, maxName), Cluster: cut(t.Cluster, maxName), SignIn: cut(t.SignIn, maxName), Session: cut(t.Session, maxName),
		Role: cut(t.Role, maxName), AuditID: cut(t.AuditID, maxName), Kind: cut(cmp.Or(t.Kind, k.SessionType), maxName), TTY: t.TTY, Input: t.Input,
		Namespace: cut(k.Namespace, maxName), Pod: cut(k.PodName, maxName), Container: cut(k.Container, maxName), Command: cut(h.Command, maxCommand)}
	for _, tag := range h.SrcNodeTags[:min(len(h.SrcNodeTags), 10)] {
		s.Tags = append(s.Tags, cut(tag, maxName))
	}
	return s
}

// cut returns at most n bytes of s, whole characters only.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// play sends a recording. Its length is announced, so that a client sees if the end is missing.
func (d *Dir) play(ctx context.Context, p access.Permit, req GetRequest, s *httpapi.Stream) error {
	missing := problem.New(problem.NotFound, "The recording does not exist, or you may not see it.", "See the recordings: tka recordings")
	if err := p.Require(access.RecordingsRead, d.cfg.Now()); err != nil {
		return err
	}
	if p.IsPlane() != (req.For != "") {
		return problem.New(problem.BadRequest, "Only the operator plane names the person who asked, and it must do so.")
	}
	f, info, err := d.Open(string(req.ID))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing
	case err != nil:
		return err
	}
	defer f.Close()
	if !mayRead(p, info.Header) {
		return missing
	}
	header := http.Header{"Content-Length": {strconv.FormatInt(info.Bytes, 10)}, "Content-Disposition": {fmt.Sprintf("attachment; filename=%q", info.ID+suffixCast)}}
	if err := s.Begin(CastType, header); err != nil {
		return err
	}
	renewed, buf := d.cfg.Now(), make([]byte, playChunk)
	for left := info.Bytes; left > 0; {
		n, err := f.Read(buf[:min(left, playChunk)])
		if n > 0 {
			if _, err := s.Write(buf[:n]); err != nil {
				return err
			}
		}
		if left -= int64(n); err != nil {
			return fmt.Errorf("read the recording: %w", cmp.Or(err, io.ErrUnexpectedEOF))
		}
		if now := d.cfg.Now(); now.Sub(renewed) > time.Second {
			renewed = now
			if p, err = s.Renew(); err != nil {
				return err
			}
			if !mayRead(p, info.Header) {
				return missing
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
