package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/accessproxy/recording/replay"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

const recorderUsage = "URL of the recorder, https:// unless it is on this machine (default recorder.url of the settings)"

// recorderClient returns a client for the recorder, from the flag or else from the settings. tka never guesses its URL.
func (t *tka) recorderClient(given string) (httpapi.Client, error) {
	from := "--recorder"
	if given == "" {
		set, err := t.settings()
		if err != nil {
			return httpapi.Client{}, err
		}
		from, given = "recorder.url", set.RecorderURL
	}
	if given == "" {
		return httpapi.Client{}, output.UsageErrorf("the URL of the recorder is not set").
			Try("tka recordings --recorder https://recorder.YOUR-TAILNET.ts.net").Try("tka config recorder.url https://recorder.YOUR-TAILNET.ts.net")
	}
	base, err := parseServiceURL(from, given)
	if err != nil {
		return httpapi.Client{}, err
	}
	agent, next := t.userAgent(), dialpolicy.Transport(base.String(), t.tailscale)
	transport := roundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.Header.Set("User-Agent", agent)
		return next.RoundTrip(r)
	})
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return httpapi.Client{HTTP: &http.Client{Transport: transport, CheckRedirect: noRedirect}, Base: base.String(), Open: openProblem}, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// openProblem returns the refusal in a response of a recorder.
func openProblem(status int, body []byte) ([]byte, *problem.Error, error) {
	if status == http.StatusOK {
		return body, nil, nil
	}
	refused := new(problem.Error)
	if _ = json.Unmarshal(body, refused); refused.Code == "" {
		return nil, nil, errors.New("no reason in the response: is it a recorder?")
	}
	return nil, refused, nil
}

// recorderError converts an error of a call to the recorder into an *output.Error.
func recorderError(err error) error {
	if p, ok := errors.AsType[*problem.Error](err); ok {
		return output.FromProblem(p)
	}
	if _, ok := errors.AsType[*output.Error](err); ok || err == nil {
		return err
	}
	return output.Errorf(output.ExitUnreachable, "the recorder did not answer: %v", err).Because(err).Try("tailscale status")
}

func (t *tka) recordings() *cobra.Command {
	var at, login string
	var limit int
	cmd := &cobra.Command{
		Use:   "recordings",
		Short: "List the recordings of sessions through the access proxy",
		Long: `List the recordings of exec, attach and port-forward that a recorder has, newest first. The
recorder shows you those of your own sessions, and with the role platform-admin of the
operator plane all of them. The access proxy wrote what the columns say; the command is what
the person asked for.`,
		Example: "  tka recordings --recorder https://recorder.tail1234.ts.net\n  tka config recorder.url https://recorder.tail1234.ts.net\n  tka recordings --login ada@example.com -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return output.UsageErrorf("--limit must be greater than zero (got %d)", limit)
			}
			return t.doRecordings(cmd.Context(), at, login, limit)
		},
	}
	f := cmd.Flags()
	f.StringVar(&at, "recorder", "", recorderUsage)
	f.StringVar(&login, "login", "", "list only the recordings of this login")
	f.IntVar(&limit, "limit", 100, "list at most this many recordings")
	return cmd
}

func (t *tka) doRecordings(ctx context.Context, at, login string, limit int) error {
	c, err := t.recorderClient(at)
	if err != nil {
		return err
	}
	all, more := []recording.Summary{}, false
	for req := (recording.ListRequest{}); ; {
		var page recording.Page
		if err := c.Do(ctx, recording.ListRecordings.Pattern, recording.ListRecordings.MaxResponse, req, &page); err != nil {
			return recorderError(err)
		}
		for _, s := range page.Recordings {
			if login != "" && s.Login != login {
				continue
			}
			if more = len(all) == limit; more {
				break
			}
			all = append(all, s)
		}
		next := recording.RecordingID(page.Next)
		if more || next == "" {
			break
		}
		if req.Before != "" && next >= req.Before {
			return output.Errorf(output.ExitFailed, "the recorder's list does not end")
		}
		req.Before = next
	}
	names := mapped(all, func(s recording.Summary) string { return "recording/" + s.ID })
	return t.printResult(result{object: newList("RecordingList", all), names: names, table: func(wide bool) {
		if len(all) == 0 {
			t.hint("There are no recordings that you may see.")
			return
		}
		t.writeTable(wide, []string{"ID", "STARTED", "USER", "KIND", "TARGET", "STATE", "COMMAND"}, []string{"DEVICE", "SESSION", "BYTES", "SHA-256"}, mapped(all, recordingRow))
		if more {
			t.hint("There are more recordings: use --limit.")
		}
	}})
}

func recordingRow(s recording.Summary) []output.Cell {
	target := strings.Trim(s.Namespace+"/"+s.Pod, "/")
	if s.Container != "" {
		target += " (" + s.Container + ")"
	}
	kind := s.Kind
	if s.TTY {
		kind += ", terminal"
	}
	return output.Row(s.ID, s.Started.Format(time.RFC3339), cmp.Or(s.Login, strings.Join(s.Tags, ",")), kind, target, string(s.State), s.Command, s.Device, s.Session, fmt.Sprint(s.Bytes), s.SHA256)
}

// playFlags are the flags of the command play.
type playFlags struct {
	at      string
	speed   float64
	maxIdle time.Duration
}

func (t *tka) play() *cobra.Command {
	var pf playFlags
	cmd := &cobra.Command{
		Use:   "play ID|FILE.cast",
		Short: "Play a recording in this terminal",
		Long: `Play a recording of a session with its original times. Ctrl-C ends it. The argument is the id
of a recording on the recorder, or a file whose name ends with .cast.

The program of the recorded session chose what is in a recording. tka passes on text, colours
and what moves the cursor, and drops everything else: a recording cannot write the clipboard,
set the title, ask the terminal questions, or change what the keyboard and the mouse send.
Other players may not do this. Commands without a terminal are shown as sizes and hashes.`,
		Example:     "  tka play 20261128T224138Z-0123456789abcdef --speed 2 --max-idle 2s\n  tka play 20261128T224138Z-0123456789abcdef.cast --speed 0",
		Args:        arguments(1, 1, "a recording"),
		Annotations: map[string]string{noTimeLimit: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			if pf.speed < 0 || pf.speed > 1000 {
				return output.UsageErrorf("--speed must be 0 to 1000 (got %v)", pf.speed)
			}
			if pf.maxIdle < 0 {
				return output.UsageErrorf("--max-idle must not be negative (got %v)", pf.maxIdle)
			}
			return t.doPlay(cmd.Context(), pf, args[0])
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"cast"}, cobra.ShellCompDirectiveFilterFileExt),
	}
	f := cmd.Flags()
	f.StringVar(&pf.at, "recorder", "", recorderUsage)
	f.Float64Var(&pf.speed, "speed", 1, "play this many times as fast; 0: without pauses")
	f.DurationVar(&pf.maxIdle, "max-idle", 0, "shorten longer pauses to this time; 0: shorten none")
	return cmd
}

// openRecording opens a file, or requests a recording from the recorder.
func (t *tka) openRecording(ctx context.Context, pf playFlags, name string) (io.ReadCloser, error) {
	if strings.HasSuffix(name, ".cast") {
		f, err := os.Open(name)
		if err != nil {
			return nil, output.Errorf(output.ExitFailed, "The recording cannot be read: %v", err).Because(err)
		}
		return f, nil
	}
	var req recording.GetRequest
	if err := req.ID.UnmarshalText([]byte(name)); err != nil || name == "" {
		return nil, output.UsageErrorf("%q is no id of a recording", name).Try("tka recordings")
	}
	c, err := t.recorderClient(pf.at)
	if err != nil {
		return nil, err
	}
	body, err := c.Follow(ctx, recording.GetRecording.Pattern, req)
	if err != nil {
		return nil, recorderError(err)
	}
	defer body.Close()
	return download(body)
}

// A tempFile is removed when it is closed. Windows does not remove open files.
type tempFile struct{ *os.File }

func (f tempFile) Close() error { return errors.Join(f.File.Close(), os.Remove(f.Name())) }

// download stores a recording in a temporary file that only this person can read. The recorder disconnects clients that read as slowly as a
// recording is played.
func download(body io.Reader) (io.ReadCloser, error) {
	file, err := os.CreateTemp("", "tka-recording-")
	if err != nil {
		return nil, output.Errorf(output.ExitFailed, "The recording cannot be stored: %v", err).Because(err)
	}
	f := tempFile{file}
	if _, err = io.Copy(f, body); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, output.Errorf(output.ExitUnreachable, "The recording is not complete: %v", err).Because(err)
	}
	return f, nil
}

func (t *tka) doPlay(ctx context.Context, pf playFlags, name string) error {
	in, err := t.openRecording(ctx, pf, name)
	if err != nil {
		return err
	}
	defer in.Close()
	p := replay.Player{Out: t.Out, Speed: pf.speed, MaxIdle: pf.maxIdle, Markers: true, Sleep: func(ctx context.Context, d time.Duration) error {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	err = p.Play(ctx, in)
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return output.Errorf(output.ExitFailed, "The recording cannot be played: %v", err).Because(err)
}
