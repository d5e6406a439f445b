package plane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// The number of log lines that are read from the end: the default for a stream, the default for one response, and the maximum.
const (
	defaultLogTail  = 500
	defaultLogLines = 100
	maxLogTail      = 5000
	maxLogLine      = 4 << 10 // of one line in a response, in bytes
)

// logPermitRenewal is half the time that the server allows a stream between renewals.
const logPermitRenewal = 5 * time.Second

// LineCount is a number of log lines; 0 means not set.
type LineCount int

// MarshalText implements [encoding.TextMarshaler].
func (n LineCount) MarshalText() ([]byte, error) { return formatCount(int(n)), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (n *LineCount) UnmarshalText(b []byte) (err error) {
	*n, err = parseCount[LineCount](b, maxLogTail)
	return err
}

// LogRequest asks for the log of a runner as a stream.
type LogRequest struct {
	RunnerRequest
	Container Text      `json:"-" query:"container" doc:"a container of the pod; default: the container that runs the job"`
	Tail      LineCount `json:"-" query:"tail" doc:"maximum number of lines, from the end, 1 to 5000 (default 500)"`
	Follow    Flag      `json:"-" query:"follow" doc:"continue with new output until the container ends"`
}

// LinesRequest asks for the end of a runner's log in one response.
type LinesRequest struct {
	RunnerRequest
	Container Text      `json:"-" query:"container" doc:"a container of the pod; default: the container that runs the job"`
	Tail      PageLimit `json:"-" query:"tail" doc:"maximum number of lines, from the end, 1 to 500 (default 100)"`
}

// SetLimit sets the maximum number of lines.
func (r *LinesRequest) SetLimit(n int) { r.Tail = PageLimit(n) }

// AuditArgs returns the arguments of the request for the audit log.
func (r LogRequest) AuditArgs() map[string]string {
	return map[string]string{"runner": r.id(), "container": string(r.Container)}
}

// AuditArgs returns the arguments of the request for the audit log.
func (r LinesRequest) AuditArgs() map[string]string {
	return LogRequest{RunnerRequest: r.RunnerRequest, Container: r.Container}.AuditArgs()
}

// Log is the end of a runner's log.
type Log struct {
	Runner    string   `json:"runner"`
	Container string   `json:"container" doc:"empty: the only one"`
	Lines     []string `json:"lines" doc:"the lines, the newest last; the job writes them, so they are untrusted"`
	Cut       bool     `json:"cut" doc:"true if some lines were too long and are cut"`

	org string
}

// AuditOrg returns the organisation for the audit log.
func (l Log) AuditOrg() string { return l.org }

// LogOptions selects the log to read.
type LogOptions struct {
	Runner    Runner
	Container string // "": the only one
	Tail      int
	Follow    bool
}

// LogStream is an example of a log, for the generated reference: the bytes as they were written.
type LogStream struct{}

// EncodeResponse implements [httpapi.Responder]. Only the reference uses it; no request receives it as its response.
func (LogStream) EncodeResponse(string) (httpapi.Response, error) {
	return httpapi.Response{Status: http.StatusOK, ContentType: "text/plain; charset=utf-8", Body: "Listening for Jobs\nRunning job: build\n"}, nil
}

// Forms returns the media type of the log, for the generated reference.
func (LogStream) Forms() map[string]any { return map[string]any{"text/plain": ""} }

// openLog opens a log if the caller may read the logs of the runner's organisation.
func (d *RunnerService) openLog(ctx context.Context, p access.Permit, req LogRequest) (io.ReadCloser, LogOptions, error) {
	o := LogOptions{Tail: int(req.Tail), Follow: bool(req.Follow), Container: string(req.Container)}
	if o.Tail == 0 {
		o.Tail = defaultLogTail
	}
	if err := p.Require(access.LogsRead, d.Plane.Now()); err != nil {
		return nil, o, err
	}
	var err error
	if o.Runner, _, err = getObject[Runner](d.Plane, KindRunner, p, req.id(), "runner"); err != nil {
		return nil, o, err
	}
	if p, err = p.In(o.Runner.OrgName); err != nil {
		return nil, o, err
	}
	if d.OpenLog == nil {
		return nil, o, problem.New(problem.Unavailable, "Logs are turned off on this server.", "Set plane.logs.enabled: true. This setting gives the server the right to read them.")
	}
	if o.Container, err = o.container(); err != nil {
		return nil, o, err
	}
	text, err := d.OpenLog(ctx, p, o)
	return text, o, err
}

// jobContainers holds the names of the container that runs a job, at GitHub and at GitLab.
var jobContainers = []string{"runner", "build"}

// container returns the selected container.
func (o LogOptions) container() (string, error) {
	if o.Runner.Pod == nil || len(o.Runner.Pod.Containers) == 0 { // let the API server select
		return o.Container, nil
	}
	var names []string
	for _, c := range o.Runner.Pod.Containers {
		names = append(names, c.Name)
	}
	switch {
	case o.Container != "" && !slices.Contains(names, o.Container):
		return "", invalidField("container", fmt.Sprintf("The pod has no container %.60q.", o.Container), "Use one of: "+strings.Join(names, ", ")+".")
	case o.Container != "":
		return o.Container, nil
	}
	for _, name := range jobContainers {
		if slices.Contains(names, name) {
			return name, nil
		}
	}
	return names[len(names)-1], nil // init containers are first
}

// streamLog serves a log until it ends, the client disconnects, or the permit expires.
func (d *RunnerService) streamLog(ctx context.Context, p access.Permit, req LogRequest, s *httpapi.Stream) error {
	text, o, err := d.openLog(ctx, p, req)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	parts := make(chan []byte)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(parts)
		readChunks(ctx, text, parts)
	}()
	defer func() { cancel(); _ = text.Close(); <-ended }() // a close error after reading is harmless
	s.SetOrg(o.Runner.OrgName)
	if err := s.Begin("text/plain; charset=utf-8", http.Header{"X-Accel-Buffering": {"no"}}); err != nil {
		return err
	}
	renew := time.NewTicker(logPermitRenewal)
	defer renew.Stop()
	for {
		select {
		case part, more := <-parts:
			if !more {
				return nil
			}
			if _, err := s.Write(part); err != nil {
				return nil // the client has disconnected or does not read: not an error of the plane
			}
		case <-renew.C:
			p, err := s.Renew()
			if err != nil {
				return err
			}
			if _, err := p.In(o.Runner.OrgName); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// readChunks reads text in parts until it or ctx ends.
func readChunks(ctx context.Context, text io.Reader, to chan<- []byte) {
	buffers := [2][]byte{make([]byte, 32<<10), make([]byte, 32<<10)} // one is sent while the other is filled
	for i := 0; ; i = 1 - i {
		n, err := text.Read(buffers[i])
		if n > 0 {
			select {
			case to <- buffers[i][:n]:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// listLines returns the end of a log in one response.
func (d *RunnerService) listLines(ctx context.Context, p access.Permit, req LinesRequest) (e Envelope[Log], err error) {
	tail := LineCount(req.Tail)
	if tail == 0 {
		tail = defaultLogLines
	}
	text, o, err := d.openLog(ctx, p, LogRequest{RunnerRequest: req.RunnerRequest, Container: req.Container, Tail: tail})
	if err != nil {
		return e, err
	}
	defer text.Close()
	log := Log{Runner: o.Runner.ID, Container: o.Container, Lines: []string{}, org: o.Runner.OrgName}
	in := bufio.NewReaderSize(text, maxLogLine)
	for len(log.Lines) < int(tail) {
		line, longer, err := in.ReadLine()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return e, problem.New(problem.Unavailable, "The log stream ended unexpectedly.", "Try again in a moment.").WithRetryAfter(time.Second).WithCause(err)
		}
		log.Lines = append(log.Lines, strings.ToValidUTF8(string(line), "\uFFFD"))
		for longer && err == nil {
			log.Cut = true
			_, longer, err = in.ReadLine()
		}
	}
	l := d.Plane.Store.List(KindRunner)
	return newEnvelope(d.Plane, "Log", log, l.Revision, l.Sources), nil
}
