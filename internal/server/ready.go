package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// Limits of one probe, and the pause between probes.
const (
	readyTime  = 5 * time.Second
	readyPause = time.Second
	readyText  = 64 << 10
)

// WaitReady waits until the servers at all URLs of probes are ready, and writes their responses to out. `helm test` runs it: the image has no
// other HTTP client.
func WaitReady(ctx context.Context, urls []string, limit time.Duration, out io.Writer) error {
	for _, u := range urls {
		if p, err := url.Parse(u); err != nil || p.Scheme != "http" || p.Host == "" || p.User != nil {
			return UsageError{fmt.Errorf("%q is not a URL of probes, such as http://HOST:8080/readyz", u)}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var errs []error
	for _, u := range urls {
		errs = append(errs, waitReady(ctx, u, out))
	}
	return errors.Join(errs...)
}

// waitReady probes u until it responds 200 or ctx ends. It then returns the last error.
func waitReady(ctx context.Context, u string, out io.Writer) error {
	var last error
	for {
		says, err := probeReady(ctx, u)
		if err == nil {
			_, err = fmt.Fprintf(out, "%s is ready\n%s", u, says)
			return err
		}
		if last == nil || ctx.Err() == nil { // a timeout at the end of ctx says nothing about the server
			last = err
		}
		if retry.Sleep(ctx, readyPause) != nil {
			return fmt.Errorf("%s is not ready: %w", u, last)
		}
	}
}

func probeReady(ctx context.Context, u string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return "", err
	}
	hc := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := hc.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, readyText))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(b)))
	}
	return string(b), err
}
