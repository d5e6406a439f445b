package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
)

// plane shows the operators' view of the earlier chapters, live.
func (s *show) plane(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	s.note("starting tailplaned plane, as the ServiceAccount tailplane-plane and the node \"dashboard\"; alice has the role operator from a grant, bob has no role")
	if err := s.env.StartPlane(limit); err != nil {
		return err
	}
	for _, who := range []string{"alice", "bob"} {
		if err := s.env.Net.WaitPeer(limit, s.people[who].Node, "dashboard"); err != nil {
			return err
		}
	}
	desk := httpapi.Client{HTTP: s.people["alice"].HTTP(), Base: s.env.Dashboard(), Open: plane.ParseEnvelope}
	if err := s.steps(ctx, "alice", step{says: "alice is signed in", run: "tka login --use"}); err != nil {
		return err
	}

	var alive []string
	var signins []plane.Signin
	err := s.sees(limit, func() (bool, error) {
		clusters, err := plane.ListClusters.Call(limit, desk, plane.ListRequest{})
		if err != nil {
			return false, err
		}
		alive = nil
		for _, c := range clusters.Data {
			if c.Health == "Alive" {
				alive = append(alive, c.Name)
			}
		}
		list, err := plane.ListSignins.Call(limit, desk, plane.ListRequest{})
		signins = list.Data
		return len(alive) == 3 && len(signins) == 1 && signins[0].Phase == "Ready", err
	})
	if err != nil {
		return err
	}
	s.asked("alice", "GET /api/v1/clusters", fmt.Sprintf("%d clusters are alive: %s", len(alive), strings.Join(alive, ", ")))
	s.claim(len(alive) == 3, "the plane shows all three clusters")
	s.claim(len(signins) == 1 && signins[0].Login == alice, "the plane shows alice's sign-in to this cluster")
	if len(signins) != 1 {
		return nil
	}

	status, body, err := s.page(limit, "alice", "/")
	if err != nil {
		return err
	}
	s.asked("alice", "GET /", fmt.Sprintf("HTTP %d, %d bytes of HTML", status, len(body)))
	s.claim(status == http.StatusOK && strings.Contains(body, "<script"), "alice's browser gets the dashboard")
	if status, body, err = s.page(limit, "bob", "/"); err != nil {
		return err
	}
	s.asked("bob", "GET /", fmt.Sprintf("HTTP %d, %d bytes of HTML", status, len(body)))
	s.claim(status == http.StatusForbidden && strings.Contains(body, bob) && !strings.Contains(body, "<script"), "bob's browser gets only a page with his identity and the missing grant")

	in := signins[0]
	done, err := plane.RevokeSignin.Call(limit, desk, plane.RevokeRequest{Namespace: in.Namespace, Name: in.Name, Reason: "the demo is over"})
	if err != nil {
		return err
	}
	s.asked("alice", "DELETE /api/v1/signins/"+in.ID, "deleted: "+fmt.Sprint(done.Data.Deleted))
	if err := s.until(ctx, "alice", "kubectl get configmaps -n shop", 1); err != nil {
		return err
	}
	s.claim(done.Data.Deleted && s.lastOut.Exit == 1, "alice's access is gone")
	record, err := plane.ListAudit.Call(limit, desk, plane.HistoryRequest{Limit: 50})
	if err != nil {
		return err
	}
	told := false
	for _, e := range record.Data {
		told = told || e.Object == in.ID && e.Reason == "the demo is over"
	}
	s.claim(told, "the audit log has the actor and the reason")
	return nil
}

// sees polls until there returns true or an error, for up to 40 s.
func (s *show) sees(ctx context.Context, there func() (bool, error)) error {
	for end := time.Now().Add(40 * time.Second); ; {
		ok, err := there()
		if err != nil || ok || time.Now().After(end) {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// asked prints a request to the plane and its response.
func (s *show) asked(who, what, answer string) {
	fmt.Printf("   %s> %s\n", who, s.paint("1", what))
	s.output(answer)
}

// page gets a page of the plane as a browser would.
func (s *show) page(ctx context.Context, who, path string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.env.Dashboard()+path, nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Accept", "text/html")
	res, err := s.people[who].HTTP().Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, string(b), err
}
