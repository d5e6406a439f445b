package doctor

func (f Facts) proxy() Result {
	switch {
	case f.APIServer == "":
		return result(Skipped, "The address of the API server is unknown.")
	case f.Proxy == "":
		return result(OK, "kubectl uses no proxy for the API server.")
	case f.NoProxy == "":
		return result(OK, "kubectl uses the proxy %s for the API server, which is not a node of the tailnet.", f.Proxy)
	}
	return result(Warn, "kubectl would send requests for the API server to the proxy %s, although it is in the tailnet. tka itself does not.", f.Proxy).
		advise("export NO_PROXY=%s", f.NoProxy)
}
