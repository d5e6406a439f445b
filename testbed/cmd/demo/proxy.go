package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// proxy shows kubectl through the access proxy: nothing on the device is a credential, and an open watch ends with the sign-in.
func (s *show) proxy(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	s.note("starting tailplaned proxy, as the ServiceAccount tailplane-proxy, which may impersonate nobody, and the node \"east-api\"")
	if err := s.env.StartProxy(limit); err != nil {
		return err
	}
	who := s.people["bob"]
	if err := s.env.Net.WaitPeer(limit, who.Node, "east-api"); err != nil {
		return err
	}
	if err := s.steps(ctx, "bob",
		step{says: "bob is signed in, and his kubeconfig names the proxy", run: "tka login --mode proxy --use"},
		step{says: "his kubeconfig has neither a token that opens anything nor a plugin, and does not name the API server", check: func() error { return s.holdsNothing(who) }},
		step{says: "kubectl works over the tailnet alone", run: "kubectl get configmaps -n shop", wants: []string{"prices"}},
		step{says: "the cluster sees the ServiceAccount of his own sign-in", run: "kubectl auth whoami", wants: []string{"system:serviceaccount:tailplane-signins:bob-example-com-"}},
		step{says: "the role is the same as without the proxy", run: "kubectl create configmap notes -n default", exit: 1, wants: []string{"forbidden"}},
	); err != nil {
		return err
	}
	type result struct {
		testenv.Result
		err error
	}
	watched := make(chan result, 1)
	go func() {
		r, err := who.Run(limit, "kubectl", "get", "configmaps", "-n", "shop", "-w")
		watched <- result{r, err}
	}()
	if err := s.sees(limit, func() (bool, error) { return s.env.ProxyStreams() > 0, nil }); err != nil {
		return err
	}
	if err := s.steps(ctx, "bob", step{says: "bob signs out while a watch is open", run: "tka logout"}); err != nil {
		return err
	}
	out := time.Now()
	r := <-watched
	if r.err != nil {
		return r.err
	}
	s.command("bob", "kubectl get configmaps -n shop -w")
	s.output(r.Both)
	s.claim(strings.Contains(r.Both, "the sign-in was ended"), "the open watch ended %.1f s after the sign-out, and says why", time.Since(out).Seconds())
	return nil
}

var serverLine = regexp.MustCompile(`(?m)^\s*server: (\S+)$`)

// holdsNothing reports what a thief could use in a person's kubeconfig.
func (s *show) holdsNothing(who *testenv.Person) error {
	b, err := os.ReadFile(who.Kubeconfig())
	if err != nil {
		return err
	}
	server := serverLine.FindSubmatch(b)
	switch {
	case strings.Contains(string(b), "exec:"):
		return errors.New("it has a plugin")
	case strings.Contains(string(b), s.env.Cluster.Server):
		return errors.New("it names the API server")
	case strings.Count(string(b), "token:") != 1 || !strings.Contains(string(b), "token: session.default"):
		return errors.New("its token is not the name of a session")
	case server == nil || string(server[1]) != s.env.ProxyServer()+"/":
		return fmt.Errorf("its server is %q", server)
	}
	return nil
}
