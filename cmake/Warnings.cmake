# disco_fuse_warnings(target): the project's warning level.
function(disco_fuse_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  if(DISCO_FUSE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
