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

	"github.com/spf13/cobra"
)

// Limits of one probe, and the pause between probes.
const (
	readyTime  = 5 * time.Second
	readyPause = time.Second
	readyText  = 64 << 10
)

// ready is the command that `helm test` runs: the image has no other HTTP client.
func ready() *cobra.Command {
	var limit time.Duration
	c := &cobra.Command{
		Use: "ready URL…", Short: "Wait until servers are ready, or print why they are not",
		Long: "Requests each URL, such as http://tailplane-access.tailplane-system.svc:8080/readyz?verbose, until all are ready, and prints their\n" +
			"responses. If one is not ready in time, the command prints the reason and exits with code 1.",
		Args: func(_ *cobra.Command, urls []string) error {
			if len(urls) == 0 {
				return usageError{errors.New("at least one URL is required")}
			}
			for _, u := range urls {
				if p, err := url.Parse(u); err != nil || p.Scheme != "http" || p.Host == "" || p.User != nil {
					return usageError{fmt.Errorf("%q is not a URL of probes, such as http://HOST:8080/readyz", u)}
				}
			}
			return nil
		},
		RunE: func(c *cobra.Command, urls []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), limit)
			defer cancel()
			var errs []error
			for _, u := range urls {
				errs = append(errs, waitReady(ctx, u, c.OutOrStdout()))
			}
			return errors.Join(errs...)
		},
	}
	c.Flags().DurationVar(&limit, "timeout", time.Minute, "how long to wait for all of them")
	return c
}

// waitReady probes u until it responds 200 or ctx ends. It then returns the last error.
func waitReady(ctx context.Context, u string, out io.Writer) error {
	tick := time.NewTicker(readyPause)
	defer tick.Stop()
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
		select {
		case <-tick.C:
		case <-ctx.Done():
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
