package serving

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// An Admin answers on a loopback port whether the adapter is ready and, to who
// holds the local token, how its clusters do. All fields are required.
type Admin struct {
	Ready    func() error // why not
	Opens    func(token string) bool
	Clusters func() []*upstream.Cluster
	// Configured is why the newest configuration is not what serves; nil if it is.
	Configured func() error
	Log        *slog.Logger
}

// Bounds of the admin port.
const (
	adminTime   = 5 * time.Second
	adminHeader = 16 << 10
)

// Handler returns the admin port's routes.
func (a *Admin) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		err := a.Ready()
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "not ready:", err)
		} else {
			fmt.Fprintln(w, "ok")
		}
		if !r.URL.Query().Has("verbose") {
			return
		}
		for _, c := range a.Clusters() {
			fmt.Fprintf(w, "cluster %s: %s\n", c.Name, c.Health().State)
		}
		if err := a.Configured(); err != nil {
			fmt.Fprintln(w, "configuration: the last good one serves:", err)
		}
	})
	mux.HandleFunc("GET /debug/clusters", func(w http.ResponseWriter, r *http.Request) {
		type cluster struct {
			Name string `json:"name"`
			upstream.Health
		}
		all := []cluster{}
		for _, c := range a.Clusters() {
			all = append(all, cluster{c.Name, c.Health()})
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(all) // an error is the client's
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		switch {
		case !slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, strings.ToLower(strings.Trim(host, "[]"))):
			http.Error(w, "this is not the host that the request names", http.StatusMisdirectedRequest)
		case checkSite(r) != nil:
			http.Error(w, "requests from another site's page are refused", http.StatusForbidden)
		case strings.HasPrefix(r.URL.Path, "/debug") && !holds(r, a.Opens):
			http.Error(w, "the request does not carry the token of this pod", http.StatusUnauthorized)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// Run serves the admin port until ctx ends.
func (a *Admin) Run(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{Handler: a.Handler(), ReadTimeout: adminTime, ReadHeaderTimeout: adminTime, WriteTimeout: adminTime, IdleTimeout: adminTime,
		MaxHeaderBytes: adminHeader, ErrorLog: slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug), DisableGeneralOptionsHandler: true}
	ended := context.AfterFunc(ctx, func() { srv.Close() })
	defer ended()
	if err := srv.Serve(ln); ctx.Err() == nil {
		return fmt.Errorf("admin port: %w", err)
	}
	return nil
}
