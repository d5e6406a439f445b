package recording

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tailplane/tailplane/internal/accessproxy/recording/frames"
)

// fake is a recorder that the test drives: it counts what it has received, and answers only what the test says.
type fake struct {
	received chan int // the size of each part of the body
	frames   chan string
}

func newFake() *fake { return &fake{received: make(chan int, 1000), frames: make(chan string, 100)} }

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		return
	}
	w.WriteHeader(http.StatusOK)
	c := http.NewResponseController(w)
	c.Flush()
	go func() {
		defer close(f.received)
		b := make([]byte, 64<<10)
		for {
			n, err := r.Body.Read(b)
			if n > 0 {
				f.received <- n
			}
			if err != nil {
				return
			}
		}
	}()
	for frame := range f.frames {
		io.WriteString(w, frame)
		c.Flush()
	}
}

// total waits until everything that was sent has arrived, and returns its size.
func (f *fake) total() (n int) {
	synctest.Wait()
	for {
		select {
		case k, ok := <-f.received:
			if n += k; !ok {
				return n
			}
		default:
			return n
		}
	}
}

// lost waits for the end of a stream's recording.
func (s *stream) waitLost(t *testing.T, within time.Duration) {
	t.Helper()
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-s.Lost():
		return
	default:
	}
	select {
	case <-s.Lost():
	case <-late.C:
		t.Fatalf("the recording was not lost within %v", within)
	}
}

// PRX-12: a recorder that lies or breaks the protocol ends the recording, and with it the stream.
func TestPRX12_RecorderLies(t *testing.T) {
	for _, x := range []struct {
		why    string
		frames []string
		want   string
	}{
		{"it acknowledges more than was sent", []string{`{"ack":1000000}`}, "acknowledges 1000000 bytes, but"},
		{"it acknowledges less than before", []string{`{"ack":50}`, `{"ack":49}`}, "acknowledges 49 bytes after 50"},
		{"it acknowledges nothing after something", []string{`{"ack":50}`, `{}`}, "acknowledges 0 bytes after 50"},
		{"a negative number", []string{`{"ack":-1}`}, "acknowledges -1"},
		{"it reports an error", []string{`{"ack":50}`, `{"error":"the disk is full"}`}, "the disk is full"},
		{"no JSON", []string{"hello"}, "ended"},
		{"another type", []string{`{"ack":"50"}`}, "ended"},
		{"a frame without end", []string{`{"ack":50, "x":"` + strings.Repeat("x", 20<<10)}, "too long"},
		{"it ends its answer", []string{`{"ack":50}`, "END"}, "ended"},
		{"a part of a frame at the end", []string{`{"ack"`, "END"}, "ended"},
	} {
		t.Run(x.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				defer func() {
					defer func() { recover() }() // it is closed already
					close(f.frames)
				}()
				r, _ := serve(t, f, false)
				s := open(t, Config{Sink: r, Required: true, TTY: true}, terminal)
				s.output(t, "hello")
				synctest.Wait()
				for _, frame := range x.frames {
					if frame == "END" {
						close(f.frames)
						break
					}
					f.frames <- frame
				}
				s.waitLost(t, second)
				if err := s.Err(); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), x.want) {
					t.Errorf("the error is %v, want %q", err, x.want)
				}
				if _, err := s.toClient.Write(message(frames.Server, frames.Stdout, "more")); !errors.Is(err, ErrLost) {
					t.Errorf("more output: %v, want ErrLost", err)
				}
				if _, err := s.toServer.Write(message(frames.Client, frames.Stdin, "more")); !errors.Is(err, ErrLost) {
					t.Errorf("more input: %v, want ErrLost", err)
				}
				if d, err := s.End(t.Context(), "cut"); d.Complete || err == nil {
					t.Errorf("the end is %+v, %v, want an incomplete recording", d, err)
				}
			})
		})
	}
}

// PRX-12: a recorder that answers HEAD or POST in another way is not used.
func TestPRX12_RecorderIsRefused(t *testing.T) {
	status := func(method string, code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == method {
				w.WriteHeader(code)
			}
		})
	}
	for _, x := range []struct {
		why     string
		handler http.Handler
		http1   bool
		want    string
	}{
		{"no /v2/record", http.NotFoundHandler(), false, "404"},
		{"HEAD is answered with 204", status("HEAD", 204), false, "204"},
		{"POST is answered with 202", status("POST", 202), false, "202"},
		{"POST is answered with 500", status("POST", 500), false, "500"},
		{"a redirect", http.RedirectHandler("http://elsewhere/v2/record", http.StatusTemporaryRedirect), false, "307"},
		{"HTTP/1.1 only", http.NotFoundHandler(), true, "start a recording"},
		{"no answer", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), false, "start a recording"},
	} {
		t.Run(x.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, kill := serve(t, x.handler, x.http1)
				began := time.Now()
				_, err := Start(t.Context(), Config{Sink: r, Required: true, TTY: true})
				if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), x.want) {
					t.Errorf("the error is %v, want ErrLost and %q", err, x.want)
				}
				if took := time.Since(began); took > startTimeout {
					t.Errorf("it took %v, want at most %v", took, startTimeout)
				}
				kill()
			})
		})
	}
}

// PRX-12: a client sees at most 256 KiB that the recorder has not acknowledged; then output and input stop until it acknowledges.
func TestPRX12_WindowOfBytes(t *testing.T) {
	for _, tty := range []bool{true, false} {
		t.Run(fmt.Sprintf("tty=%t", tty), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				defer close(f.frames)
				r, _ := serve(t, f, false)
				s := open(t, Config{Sink: r, Required: true, TTY: tty}, terminal)
				chunk := message(frames.Server, frames.Stdout, strings.Repeat("x", 10<<10))
				result := make(chan error, 2)
				go func() {
					for range 100 { // 1 MB
						if _, err := s.toClient.Write(chunk); err != nil {
							result <- err
							return
						}
					}
					result <- nil
				}()
				sent := 0
				for range 10 {
					sent += f.total()
					before := s.seen.Len()
					if before > 10*windowBytes || before < windowBytes-(20<<10) {
						t.Fatalf("the client has seen %d bytes", before)
					}
					typed := make(chan error, 1)
					go func() {
						_, err := s.toServer.Write(message(frames.Client, frames.Stdin, "x"))
						typed <- err
					}()
					synctest.Wait()
					if len(result) > 0 {
						break
					}
					if len(typed) > 0 {
						t.Error("input passed while output was held back")
					}
					f.frames <- fmt.Sprintf(`{"ack":%d}`, sent)
					synctest.Wait()
					// The chunk that was held back was recorded, sent and acknowledged before it was seen.
					if grown := s.seen.Len() - before; grown > windowBytes+len(chunk) {
						t.Errorf("the client has seen %d bytes after one acknowledgement, want at most %d", grown, windowBytes+len(chunk))
					}
					if err := <-typed; err != nil {
						t.Fatal(err)
					}
				}
				if err := <-result; err != nil {
					t.Error(err)
				}
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				s.End(ended, "cut")
			})
		})
	}
}

// PRX-12: output that the client has seen is unacknowledged for at most 5 s before everything stops, and for at most 30 s before the recording
// is lost. The client has seen nothing more.
func TestPRX12_RecorderStalls(t *testing.T) {
	for name, keep := range map[string]func(f *fake){
		"silent": func(*fake) {},
		"alive, without progress": func(f *fake) {
			for range 20 {
				time.Sleep(2 * second)
				f.frames <- `{}`
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				r, _ := serve(t, f, false)
				s := open(t, Config{Sink: r, Required: true, TTY: true}, terminal)
				done := make(chan struct{})
				go func() {
					defer close(done)
					keep(f)
				}()
				began := time.Now()
				var last time.Duration
				for {
					if _, err := s.toClient.Write(message(frames.Server, frames.Stdout, "x")); err != nil {
						if !errors.Is(err, ErrLost) {
							t.Errorf("the error is %v, want ErrLost", err)
						}
						break
					}
					last = time.Since(began)
					time.Sleep(100 * time.Millisecond)
				}
				if last < 4*second || last > windowAge {
					t.Errorf("the last output was seen after %v, want nearly %v", last, windowAge)
				}
				if took := time.Since(began); took != ackTimeout {
					t.Errorf("the recording was lost after %v, want %v", took, ackTimeout)
				}
				s.waitLost(t, second)
				<-done
				close(f.frames)
				s.End(t.Context(), "cut")
			})
		})
	}
}

// PRX-12: a recorder that dies while a terminal is idle is noticed, although nothing is unacknowledged.
func TestPRX12_RecorderDies(t *testing.T) {
	bubble(t, func(t *testing.T, dir string) {
		d := openDir(t, DirConfig{Path: dir})
		r, kill := serve(t, d.Handler(), false)
		s := open(t, Config{Sink: r, Required: true, TTY: true}, terminal)
		s.output(t, "$ ")
		time.Sleep(time.Hour)
		if err := s.Err(); err != nil {
			t.Fatalf("an idle hour: %v", err)
		}
		kill()
		synctest.Wait() // it need not wait for a timeout
		s.waitLost(t, 0)
		if _, err := s.toClient.Write(message(frames.Server, frames.Stdout, "secret")); !errors.Is(err, ErrLost) {
			t.Errorf("output after that: %v, want ErrLost", err)
		}
		if strings.Contains(s.seen.String(), "secret") {
			t.Error("the client has seen output that was not recorded")
		}
		if err := s.conn.End(t.Context(), frames.Reason{Message: "the recorder has gone"}); err != nil {
			t.Error(err)
		}
		if !strings.Contains(s.seen.String(), "the recorder has gone") {
			t.Error("the client was not told why")
		}
		s.End(t.Context(), "cut")
		synctest.Wait()
		text, info := contents(t, d, s.ID())
		if info.State != Incomplete || joined(events(t, text), "o") != "$ " {
			t.Errorf("the recorder has a recording that is %s, with %q", info.State, text)
		}
	})
}

// PRX-12: a recorder that fills up reports it, and the stream is cut.
func TestPRX12_RecorderFillsUp(t *testing.T) {
	bubble(t, func(t *testing.T, dir string) {
		d := openDir(t, DirConfig{Path: dir, MaxBytes: 1 << 20})
		r, _ := serve(t, d.Handler(), false)
		s := open(t, Config{Sink: r, Required: true, TTY: true}, terminal)
		var err error
		for range 200 {
			if _, err = s.toClient.Write(message(frames.Server, frames.Stdout, strings.Repeat("x", 10<<10))); err != nil {
				break
			}
			synctest.Wait()
		}
		if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), ErrFull.Error()) {
			t.Errorf("the error is %v, want %v", err, ErrFull)
		}
		if seen := s.seen.Len(); seen > 1<<20+windowBytes {
			t.Errorf("the client has seen %d bytes, more than the recorder has and a window", seen)
		}
		s.End(t.Context(), "cut")
	})
}

// TestSlowRecorder checks that a recorder which needs 3 s for each acknowledgement loses nothing.
func TestSlowRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		r, _ := serve(t, f, false)
		s := open(t, Config{Sink: r, Required: true, TTY: true}, terminal)
		go func() {
			defer close(f.frames)
			sum := 0
			for n := range f.received {
				sum += n
				for more := true; more; {
					select {
					case n, more = <-f.received:
						sum += n
					default:
						more = false
					}
				}
				time.Sleep(3 * second)
				f.frames <- fmt.Sprintf(`{"ack":%d}`, sum)
			}
		}()
		for range 100 {
			s.output(t, strings.Repeat("x", 10<<10))
		}
		if d, err := s.End(t.Context(), "done"); err != nil || !d.Complete {
			t.Errorf("the end is %+v, %v", d, err)
		}
	})
}

// TestProtocol checks the bytes of our recorder's answer, as Tailscale's client reads them.
func TestProtocol(t *testing.T) {
	bubble(t, func(t *testing.T, dir string) {
		d := openDir(t, DirConfig{Path: dir})
		r, _ := serve(t, d.Handler(), false)
		post := func(body io.Reader) (answers []ackFrame) {
			t.Helper()
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			client := &http.Client{Transport: &http.Transport{Protocols: protocols, DialContext: r.Dial}}
			defer client.CloseIdleConnections()
			answer, err := client.Post("http://recorder/v2/record", "", body)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			for dec := json.NewDecoder(answer.Body); ; {
				var f ackFrame
				if err := dec.Decode(&f); err != nil {
					return answers
				}
				answers = append(answers, f)
			}
		}
		theirs := `{"version":2,"width":80,"height":24,"timestamp":1,"srcNode":"laptop","env":null,"sshUser":"root","kubernetes":{"PodName":"web-0"}}` + "\n"
		got := post(strings.NewReader(theirs + `[1,"o","hi"]` + "\n"))
		if last := got[len(got)-1]; last.Ack != int64(len(theirs))+13 || last.Error != "" {
			t.Errorf("the last frame is %+v, want all bytes", last)
		}
		list, err := d.List("", 0)
		if err != nil {
			t.Fatal(err)
		}
		var listed []string
		for _, i := range list {
			listed = append(listed, string(i.State)+" "+i.Header.Kubernetes.PodName)
		}
		if diff := cmp.Diff([]string{"complete web-0"}, listed); diff != "" {
			t.Errorf("the list (-want +got):\n%s", diff)
		}
		for why, body := range map[string]string{"no asciicast": "hello\n", "no header": `{"version":2`, "a long header": strings.Repeat("x", maxHeader+1)} {
			got := post(strings.NewReader(body))
			if len(got) == 0 || got[len(got)-1].Error == "" {
				t.Errorf("%s: the answers are %+v, want an error", why, got)
			}
		}
		if names := files(t, dir); len(names) != 2 { // a recording and its hash
			t.Errorf("uploads that were refused left %v", names)
		}
		if got := post(bytes.NewReader(nil)); len(got) == 0 || got[len(got)-1].Error != "" {
			t.Errorf("an empty upload: %+v, want no error", got)
		}
	})
}
