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
	pageSize   = 200     // recordings of one response
	pageLooks  = 2000    // recordings that one response examines
	maxPage    = 4 << 20 // bytes of a response
	maxCommand = 500     // bytes of a command
	maxName    = 253     // bytes of any other text
	castType   = "application/x-asciicast"
	playChunk  = 32 << 10
)

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

// A ListRequest asks for recordings.
type ListRequest struct {
	Before RecordingID `json:"-" query:"before" doc:"only recordings whose id is smaller; the value of next of the previous page"`
}

// A GetRequest asks for one recording.
type GetRequest struct {
	ID RecordingID `json:"-" path:"id" doc:"id of the recording"`
}

// AuditArgs implements httpapi.AuditArguer.
func (r GetRequest) AuditArgs() map[string]string {
	return map[string]string{"recording": string(r.ID)}
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
	Tags      []string  `json:"tags,omitempty"` // of a tagged node
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
		Doc: "Lists recordings, newest first. A role that does not cover everything lists those of the caller's own sessions."}
	GetRecording = httpapi.Op[GetRequest, []byte]{Pattern: "GET /api/v1/recordings/{id}", Verb: access.RecordingsRead,
		Doc: "Returns a recording as an asciicast of version 2. One that is live is returned as far as it is written.", Refusals: []problem.Code{problem.NotFound}}
)

// Routes returns the routes of the operations.
func (d *Dir) Routes() []httpapi.Route {
	return []httpapi.Route{ListRecordings.Serve(d.listFor), GetRecording.ServeStream(d.play)}
}

// mayRead reports whether a permit covers a recording: all, or those of the caller's own sessions. A recording names its caller by login
// and, for a person, by the id of the user, because another user may get the login later.
func mayRead(p access.Permit, h Header) bool {
	c := p.Caller()
	if p.Everywhere() {
		return true
	}
	id, _ := strconv.ParseInt(c.UserID, 10, 64)
	own := c.Login != "" && string(c.Login) == h.SrcNodeUser
	return own && (h.SrcNodeUserID == 0 || h.SrcNodeUserID == id)
}

func (d *Dir) listFor(_ context.Context, p access.Permit, req ListRequest) (Page, error) {
	if err := p.Require(access.RecordingsList, d.cfg.Now()); err != nil {
		return Page{}, err
	}
	page, before := Page{Recordings: []Summary{}}, string(req.Before)
	for looked := 0; looked < pageLooks; {
		list, err := d.List(before, pageSize)
		if err != nil {
			return Page{}, err
		}
		for _, i := range list {
			if before = i.ID; mayRead(p, i.Header) {
				page.Recordings = append(page.Recordings, i.Summary())
			}
			if len(page.Recordings) == pageSize {
				page.Next = before
				return page, nil
			}
		}
		if looked += len(list); len(list) < pageSize {
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
		Login: cut(h.SrcNodeUser, maxName), Device: cut(h.SrcNode, maxName), Cluster: cut(t.Cluster, maxName), SignIn: cut(t.SignIn, maxName), Session: cut(t.Session, maxName),
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
	if err := s.Begin(castType, header); err != nil {
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
