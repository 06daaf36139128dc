package transport

// Conns returns the number of connections, and how many of them are in the handshake.
func (s *Server) Conns() (all, greeting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) + len(s.greeting), len(s.greeting)
}

// Streams returns how many calls the client's connection has.
func (c *Client) Streams() int {
	conn := c.now.Load()
	conn.mu.Lock()
	defer conn.mu.Unlock()
	return len(conn.streams)
}
