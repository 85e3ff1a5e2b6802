// Asio and Beast are compiled once, here; http_server.cpp sees declarations only.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
