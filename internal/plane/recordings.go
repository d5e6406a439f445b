package plane

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	player "github.com/tailplane/tailplane/internal/accessproxy/recording/replay"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// A Recorder is the recorder whose recordings the plane shows. It shows all of them to the plane, and the plane decides which of its
// callers may see which.
type Recorder struct {
	Name string // host name
	List func(context.Context, recording.ListRequest) (recording.Page, error)
	Open func(context.Context, recording.GetRequest) (io.ReadCloser, error)
}

const (
	// recorderSource is the name of the recorder among the sources.
	recorderSource = "recorder"
	// maxReplay is the size, in bytes, up to which the plane sends a recording. A browser holds it in memory.
	maxReplay = 32 << 20
	// maxRecordingPages is the number of pages of the recorder that the plane reads for one page of its own.
	maxRecordingPages = 5
	// recordingRenewal is the time after which a replay that is being sent is decided again.
	recordingRenewal = time.Second
)

// Recording describes a recording. The access proxy wrote all texts; they are data of other people.
type Recording struct {
	ID        string    `json:"id"`
	State     string    `json:"state" enum:"live,complete,incomplete"`
	Login     string    `json:"login" doc:"the person; of a tagged device: its tags"`
	Device    string    `json:"device"`
	Cluster   string    `json:"cluster"`
	Session   string    `json:"session" doc:"empty: the default session"`
	Signin    string    `json:"signin" doc:"name of the sign-in"`
	Role      string    `json:"role"`
	Kind      string    `json:"kind" doc:"exec, attach or portForward"`
	Terminal  bool      `json:"terminal" doc:"it shows a terminal; otherwise it has sizes and hashes"`
	Input     bool      `json:"input" doc:"it has the input too, which a replay does not show"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Container string    `json:"container"`
	Command   string    `json:"command" doc:"the command that the person asked for"`
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended" doc:"of one that is live: when its file was last written"`
	Bytes     int64     `json:"bytes"`
	SHA256    string    `json:"sha256" doc:"of a complete one, in hexadecimal; the audit log of the access proxy has the same"`
	Audit     string    `json:"audit" doc:"audit id of the request"`
}

// RecordingsRequest selects recordings.
type RecordingsRequest struct {
	Login  Text                  `json:"-" query:"login" doc:"only recordings of this login"`
	Before recording.RecordingID `json:"-" query:"before" doc:"only older ones; meta.page.next of the previous page"`
}

// ReplayRequest names a recording.
type ReplayRequest struct {
	ID recording.RecordingID `json:"-" path:"id"`
}

// AuditArgs returns the request's arguments for the audit log.
func (r ReplayRequest) AuditArgs() map[string]string {
	return map[string]string{"recording": string(r.ID)}
}

// The operations for recordings.
var (
	ListRecordings = httpapi.Op[RecordingsRequest, Envelope[[]Recording]]{
		Pattern: "GET " + Base + "/recordings", Verb: access.RecordingsList, MaxResponse: 4 << 20,
		Doc:       "List recordings of streams through the access proxies, the newest first: those of the caller's own sessions, or all.",
		Responses: []Envelope[[]Recording]{newExamplePage("RecordingList", exampleRecording)}, Refusals: listRefusals,
	}
	ReplayRecording = httpapi.Op[ReplayRequest, recording.Cast]{
		Pattern: "GET " + Base + "/recordings/{id}", Verb: access.RecordingsRead,
		Doc:       "Get a recording for a player: an asciicast of version 2 with text, colours and movements of the cursor only, and at most 32 MiB. The recorder has the whole.",
		Responses: []recording.Cast{{}}, Refusals: getRefusals,
	}
	exampleRecording = Recording{ID: "20261122T114108Z-0123456789abcdef", State: "complete", Login: "alice@example.com", Device: "alice-laptop.tail1234.ts.net", Cluster: "prod-eu",
		Signin: "alice-example-com-0f3c9a1b2d4e5f607182", Role: "edit", Kind: "exec", Terminal: true, Namespace: "shop", Pod: "web-0", Container: "app", Command: "bash",
		Started: exampleTime, Ended: exampleTime.Add(4 * time.Minute), Bytes: 20480, Audit: "9392fdf7-363b-4154-8550-6808e60c92c3"}
)

// recordingOf returns a recording as the plane shows it.
func recordingOf(s recording.Summary) Recording {
	r := Recording{ID: s.ID, State: string(s.State), Login: s.Login, Device: s.Device, Cluster: s.Cluster, Session: s.Session, Signin: s.SignIn, Role: s.Role, Kind: s.Kind, Terminal: s.TTY, Input: s.Input,
		Namespace: s.Namespace, Pod: s.Pod, Container: s.Container, Command: s.Command, Started: s.Started, Ended: s.Modified, Bytes: s.Bytes, SHA256: s.SHA256, Audit: s.AuditID}
	for _, tag := range s.Tags {
		if r.Login != "" {
			r.Login += " "
		}
		r.Login += tag
	}
	return r
}

// recorderFault says why the recorder gave no answer.
func recorderFault(err error) string {
	switch problem.CodeOf(err) {
	case problem.TaggedNode, problem.NoCapability, problem.NotAuthorized, problem.BadCapability, problem.BadRequest:
		return "It does not know this plane: add a tag of the plane's node to its setting recorder.planes."
	}
	return proxyFault(err)
}

var (
	noRecorder     = problem.New(problem.Unavailable, "No recorder is configured.", "Set plane.recorder to the URL of the recorder.")
	goneRecordings = problem.New(problem.NotFound, "The recording does not exist, or you may not see it.", "List the recordings.")
)

// mayReplay reports whether the caller of p may see a recording: all, or those of the caller's own sessions, as at the recorder itself.
func mayReplay(p access.Permit, s recording.Summary) bool {
	return p.Everywhere() || recording.IsOwn(p.Caller(), s.Login, s.UserID)
}

// listRecordings lists a page of the recordings that the caller may see.
func (d *Service) listRecordings(ctx context.Context, p access.Permit, req RecordingsRequest) (Envelope[[]Recording], error) {
	now := d.Now().UTC()
	source := Source{Name: recorderSource, Status: StatusOK, ObservedAt: now, Since: now}
	down := func(message string) (Envelope[[]Recording], error) { // an empty list would be wrong
		source.Status, source.ObservedAt, source.Message = StatusDown, time.Time{}, message
		return newEnvelope[[]Recording](d, "RecordingList", nil, d.Store.Revision(), []Source{source}), nil
	}
	if d.Recorder == nil {
		return down("No recorder is configured: set plane.recorder.")
	}
	ask := recording.ListRequest{Before: req.Before, Login: recording.Text(req.Login)}
	if own := string(p.Caller().Login); !p.Everywhere() {
		if own == "" || req.Login != "" && string(req.Login) != own {
			return Envelope[[]Recording]{}, problem.New(problem.Forbidden, "You may see the recordings of your own sessions only.",
				"Leave out the login, or ask for the role platform-admin.")
		}
		ask.Login = recording.Text(own)
	}
	ctx, cancel := context.WithTimeout(ctx, proxyWait)
	defer cancel()
	all, next := []Recording{}, ""
	for range maxRecordingPages {
		page, err := d.Recorder.List(ctx, ask)
		if err != nil {
			return down(recorderFault(err))
		}
		for _, s := range page.Recordings {
			if mayReplay(p, s) {
				all = append(all, recordingOf(s))
			}
		}
		next = page.Next
		if ask.Before = recording.RecordingID(next); next == "" || len(all) > 0 {
			break
		}
	}
	e := newEnvelope(d, "RecordingList", all, d.Store.Revision(), []Source{source})
	e.Meta.Page = &Page{Limit: recording.PageSize, Next: next}
	return e, nil
}

// replayRecording sends one recording. Whether the caller may see it is decided by its header, which the recorder lists, before the first
// byte, and again while it is sent.
func (d *Service) replayRecording(ctx context.Context, p access.Permit, req ReplayRequest, s *httpapi.Stream) error {
	if err := p.Require(access.RecordingsRead, d.Now()); err != nil {
		return err
	}
	if d.Recorder == nil {
		return noRecorder
	}
	about, err := d.summaryOf(ctx, req.ID)
	if err != nil {
		return err
	}
	if !mayReplay(p, about) {
		return goneRecordings
	}
	text, err := d.Recorder.Open(ctx, recording.GetRequest{ID: req.ID, For: recording.Text(p.Caller().Identity())})
	if err != nil {
		return recorderProblem(err)
	}
	defer text.Close()
	if err := s.Begin(recording.CastType, http.Header{"X-Accel-Buffering": {"no"}}); err != nil {
		return err
	}
	in := &renewing{Reader: text, stream: s, now: d.Now, renewed: d.Now(), may: func(p access.Permit) bool { return mayReplay(p, about) }}
	if err := player.Clean(s, in, maxReplay); !errors.Is(err, player.ErrTooLarge) {
		return err
	}
	return nil
}

// summaryOf returns the description of a recording.
func (d *Service) summaryOf(ctx context.Context, id recording.RecordingID) (recording.Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, proxyWait)
	defer cancel()
	page, err := d.Recorder.List(ctx, recording.ListRequest{ID: id})
	if err != nil {
		return recording.Summary{}, recorderProblem(err)
	}
	if len(page.Recordings) != 1 || page.Recordings[0].ID != string(id) {
		return recording.Summary{}, goneRecordings
	}
	return page.Recordings[0], nil
}

// recorderProblem returns the refusal for a caller when the recorder gave no recording.
func recorderProblem(err error) error {
	if problem.CodeOf(err) == problem.NotFound {
		return goneRecordings
	}
	return problem.New(problem.Unavailable, "The recorder gave no answer: "+recorderFault(err), "Try again in a moment.").WithCause(err)
}

// A renewing reader decides again about a stream while it reads what the stream sends, also while nothing of it is sent.
type renewing struct {
	io.Reader
	stream  *httpapi.Stream
	now     func() time.Time
	renewed time.Time
	may     func(access.Permit) bool
}

// Read implements [io.Reader].
func (r *renewing) Read(b []byte) (int, error) {
	if now := r.now(); now.Sub(r.renewed) >= recordingRenewal {
		p, err := r.stream.Renew()
		if err != nil {
			return 0, err
		}
		if r.renewed = now; !r.may(p) {
			return 0, goneRecordings
		}
	}
	return r.Reader.Read(b)
}
