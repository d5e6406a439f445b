package accessproxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A path is one way of a client to the API server.
type path struct {
	name, url, token string
	dial             func(ctx context.Context, network, addr string) (net.Conn, error)
	roots            *x509.CertPool
	pid              int // of the proxy; 0: there is none
	noHTTP2          bool
}

// client returns a client with its own connections: one with HTTP/2, or as many as there are requests at once.
func (p *path) client(b *testing.B, http2 bool) *http.Client {
	t := &http.Transport{DialContext: p.dial, TLSClientConfig: &tls.Config{RootCAs: p.roots}, DisableCompression: true, MaxIdleConnsPerHost: 100, Protocols: new(http.Protocols)}
	t.Protocols.SetHTTP1(!http2)
	t.Protocols.SetHTTP2(http2)
	b.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

func (p *path) open(ctx context.Context, c *http.Client, url string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+p.token)
	res, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 1000))
		res.Body.Close()
		return nil, fmt.Errorf("%s: %s: %s", p.name, res.Status, body)
	}
	return res, nil
}

func (p *path) get(ctx context.Context, c *http.Client, url string) (int64, error) {
	res, err := p.open(ctx, c, url)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	return io.Copy(io.Discard, res.Body)
}

// processorTime returns the CPU time of all threads of a process. See clock_getcpuclockid(3) for the clock.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	if pid == 0 {
		return 0
	}
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|2, &t); err != nil {
		b.Skip("SKIP processor time: this machine does not report it for other processes: ", err)
	}
	return time.Duration(t.Nano())
}

// A sample is what one path has done in one workload.
type sample struct {
	took []time.Duration // of each request
	wall time.Duration   // of all turns
	cpu  time.Duration   // of the proxy
}

func (s *sample) p50() float64  { return s.quantile(0.5).Seconds() * 1000 }
func (s *sample) rate() float64 { return float64(len(s.took)) / s.wall.Seconds() }
func (s *sample) cpuEach() float64 {
	return s.cpu.Seconds() * 1e6 / float64(len(s.took))
}

func (s *sample) quantile(q float64) time.Duration {
	slices.Sort(s.took)
	return s.took[int(q*float64(len(s.took)-1))]
}

// A workload is what each path has to do in its turns.
type workload struct {
	name    string
	url     string
	http2   bool
	clients int
	each    int // requests of all clients in one turn
	// once closes the connection after each request.
	once bool
}

// turn sends the requests of one turn.
func (w *workload) turn(b *testing.B, p *path, c *http.Client, s *sample) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(w.each))
	took := make([][]time.Duration, w.clients)
	failed := make(chan error, w.clients)
	var all sync.WaitGroup
	cpu, began := processorTime(b, p.pid), time.Now()
	for i := range w.clients {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				start := time.Now()
				if _, err := p.get(b.Context(), c, w.url); err != nil {
					failed <- err
					return
				}
				took[i] = append(took[i], time.Since(start))
				if w.once {
					c.CloseIdleConnections()
				}
			}
		})
	}
	all.Wait()
	s.wall, s.cpu = s.wall+time.Since(began), s.cpu+processorTime(b, p.pid)-cpu
	select {
	case err := <-failed:
		b.Fatalf("%s, %s: %v", w.name, p.name, err)
	default:
	}
	s.took = append(s.took, slices.Concat(took...)...)
}

// measure lets the paths take turns. Each round starts with another path.
func (w *workload) measure(b *testing.B, rounds int, paths []*path) map[string]*sample {
	b.Helper()
	samples, clients := map[string]*sample{}, map[string]*http.Client{}
	paths = slices.Clone(paths)
	if w.http2 {
		paths = slices.DeleteFunc(paths, func(p *path) bool { return p.noHTTP2 })
	}
	for _, p := range paths {
		samples[p.name], clients[p.name] = &sample{}, p.client(b, w.http2)
		w.turn(b, p, clients[p.name], &sample{}) // opens connections
	}
	for i := range rounds {
		for j := range paths {
			p := paths[(i+j)%len(paths)]
			w.turn(b, p, clients[p.name], samples[p.name])
		}
	}
	for _, p := range paths {
		s := samples[p.name]
		fmt.Printf("    %-23s %-9s p50 %8.2f ms  p99 %8.2f ms  %7.0f/s  cpu %7.0f us\n", w.name, p.name, s.p50(), s.quantile(0.99).Seconds()*1000, s.rate(), s.cpuEach())
	}
	return samples
}

// watchDelays returns how long the events of a watch take from the start of the write that causes them.
func (p *path) watchDelays(b *testing.B, url string, n int, write func(seq int) error) (took []time.Duration) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	res, err := p.open(ctx, p.client(b, false), url)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	events := json.NewDecoder(res.Body)
	next := func() error {
		var e struct {
			Type   string
			Object json.RawMessage
		}
		err := events.Decode(&e)
		if err == nil && e.Type != "ADDED" && e.Type != "MODIFIED" {
			err = fmt.Errorf("%s %s", e.Type, e.Object)
		}
		return err
	}
	if err := next(); err != nil { // the object as it is
		b.Fatalf("%s: %v", p.name, err)
	}
	for i := range n {
		began := time.Now()
		err := write(i)
		if err == nil {
			err = next()
		}
		if err != nil {
			b.Fatalf("%s: %v", p.name, err)
		}
		took = append(took, time.Since(began))
	}
	return took
}

// idle opens n watches that have no events, and returns a function that closes them.
func (p *path) idle(b *testing.B, c *http.Client, url string, n int) (end func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	bodies := make([]io.Closer, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	const atOnce = 32
	turns := make(chan struct{}, atOnce)
	for i := range n {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			res, err := p.open(ctx, c, url)
			if errs[i] = err; err == nil {
				bodies[i] = res.Body
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatalf("%s: %.1000v", p.name, err)
	}
	return func() {
		cancel()
		for _, body := range bodies {
			body.Close()
		}
	}
}
