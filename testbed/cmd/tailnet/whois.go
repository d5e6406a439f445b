package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"tailscale.com/tsnet"
)

// serveWhoIs serves the WhoIs result of the caller on the node's port 80.
func serveWhoIs(s *tsnet.Server) error {
	lc, err := s.LocalClient()
	if err != nil {
		return err
	}
	ln, err := s.Listen("tcp", ":80")
	if err != nil {
		return err
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := lc.WhoIs(r.Context(), r.RemoteAddr)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		caps, err := json.Marshal(who.CapMap)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintf(w, "%q on %q, capabilities %s\n", who.UserProfile.LoginName, who.Node.ComputedName, caps)
	})}
	go srv.Serve(ln) // ends with the node
	return nil
}

// text returns the body of a response.
func text(res *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, b)
	}
	return strings.TrimSpace(string(b)), err
}
